"""The facts of a request, and the reasons for which one of its outputs ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from hashlib import sha256
from struct import pack
from typing import NamedTuple, Protocol

from quire.core.memory import BlockHash, root_hash, rooted


@dataclass(frozen=True)
class Adapter:
    """Low-rank changes to a model's weights (LoRA), for the requests that ask for them.

    fingerprint: of their content. Two that are called alike are two, if one is changed.
    """

    fingerprint: bytes
    name: str = field(compare=False)


KEPT_SECONDS = 300.0
"""Seconds for which the beginning of a prompt is kept, unless it is to be for longer."""


class Origin(NamedTuple):
    """What a request is part of, for those who watch. Nothing that is computed depends on it."""

    operation: str = "text_completion"  # by OpenTelemetry's conventions
    request_id: str = ""  # of the HTTP request
    traceparent: str = ""  # the caller's span, as its header says
    tracestate: str = ""
    progress: bool = False  # its caller is told how far its prompt has been computed


class VectorSpan(NamedTuple):
    """Positions of a prompt that have vectors in the place of tokens; their ids are 0.

    digests: of each one's vector, all as long. Whose are equal share blocks.
    vectors: [positions, width], for who computes; nobody else looks into them.
    """

    start: int
    digests: Sequence[bytes]
    vectors: object

    @property
    def end(self) -> int:
        return self.start + len(self.digests)

    def root(self, parent: BlockHash, start: int, end: int) -> BlockHash:
        """The parent, in names, of the block of these positions, some of which are the span's."""
        first, last = max(start, self.start), min(end, self.end)
        content = b"".join(self.digests[first - self.start : last - self.start])
        return rooted(parent, pack("<qq", first, last) + sha256(content).digest())


class Params(Protocol):
    """What a request asks of its outputs, as far as it decides who runs, and when one ends.

    How each token is chosen, only who samples looks at.
    """

    @property
    def n(self) -> int: ...

    @property
    def width(self) -> int:
        """Branches that run at once."""
        ...

    @property
    def num_outputs(self) -> int:
        """Outputs that are returned."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Of each output; None: as many as there is room for."""
        ...

    @property
    def min_tokens(self) -> int: ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """That end an output beside the model's own."""
        ...

    @property
    def ignore_eos(self) -> bool:
        """Whether the model's own do not."""
        ...

    @property
    def prompt_logprobs(self) -> int | None:
        """Likeliest tokens that are told beside each one of the prompt; None: the prompt is not
        scored.
        """
        ...

    @property
    def structured_outputs(self) -> object | None:
        """What the text must be like; None: like anything."""
        ...

    @property
    def asks_beside(self) -> bool:
        """Whether it asks for what takes a step time beside the model."""
        ...

    @property
    def use_beam_search(self) -> bool:
        """Whether the branches are beams."""
        ...


class PooledPrompt(Protocol):
    """How a vector is made of a prompt."""

    @property
    def needs_all_rows(self) -> bool:
        """Whether it takes every token's state, which no prefix cache keeps."""
        ...


@dataclass(frozen=True)
class Request:
    """The facts of a request. They never change, whatever happens to it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: Params
    max_tokens: int  # params.max_tokens with the model's length applied; 0: only the prompt counts
    seed: int  # params.seed, or one drawn for this request
    arrival: float = 0.0  # seconds, on the clock that schedule() is given
    ready: float | None = None  # when it had been prepared and could be queued; None: at arrival
    eos_token_ids: frozenset[int] = frozenset()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()  # params.bad_words as tokens
    rules: object = None  # what params ask of the text, compiled: only who samples looks into it
    pooling: PooledPrompt | None = None  # a vector is wanted, and no tokens
    second_from: int | None = None  # where the second text of a pair begins; None: there is but one
    prediction: tuple[int, ...] = ()  # what its output is expected to be like, mostly
    priority: int = 0  # under the priority and fair policies: the lower, the sooner
    client: str = ""  # who is served; under the fair policy, clients share
    cache_salt: str = ""  # only requests with the same salt share a prefix cache
    adapter: Adapter | None = None  # what the model's weights are changed by
    keep: Sequence[tuple[int, float]] = ()  # first tokens to evict after others, for so long
    origin: Origin = Origin()  # noqa: RUF009  # frozen
    spans: Sequence[VectorSpan] = ()  # of its prompt, in their order
    block_hashes: Sequence[BlockHash] = ()
    """Names of its first full blocks, in place of hashes of their tokens: a trace that tells which
    blocks are equal is replayed with them. They may reach into the output of branch 0."""

    @property
    def min_tokens(self) -> int:
        """No end counts before: 0 for structured texts, which end sooner only where they must."""
        return 0 if self.params.structured_outputs is not None else self.params.min_tokens

    @cached_property
    def bad_words_after(self) -> Mapping[int | None, list[tuple[int, ...]]]:
        """``bad_word_ids`` by the token before their last; None: those of one token."""
        words: dict[int | None, list[tuple[int, ...]]] = {}
        for word in self.bad_word_ids:
            if word:
                words.setdefault(word[-2] if len(word) > 1 else None, []).append(word)
        return words

    @property
    def root_hash(self) -> BlockHash:
        """Only requests with the same one find each other's blocks, or what they were answered."""
        return root_hash(self.cache_salt, b"" if self.adapter is None else self.adapter.fingerprint)

    @property
    def keeping_tokens(self) -> float:
        """What keeping its prompt counts for, in tokens of service.

        A quarter of them for minutes and as many again for longer: Anthropic's prices.
        """
        most, price = len(self.prompt_token_ids), {True: 0.25, False: 1.0}
        each = (min(tokens, most) * price[time <= KEPT_SECONDS] for tokens, time in self.keep)
        return max(each, default=0.0)

    @property
    def longest(self) -> int:
        """Tokens whose keys and values a branch may need; the last one's are never read."""
        return len(self.prompt_token_ids) + max(self.max_tokens, 1) - 1

    @property
    def needs_all_rows(self) -> bool:
        """Whether its answer is made of every token's state, which no prefix cache keeps."""
        return self.pooling is not None and self.pooling.needs_all_rows


class FinishReason(str, Enum):
    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens
    ABORT = "abort"
    ERROR = "error"
