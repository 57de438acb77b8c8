"""What a request gives: deltas while it runs, a RequestOutput (vLLM's names) when it is done."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from quire.core.errors import QuireError
from quire.core.protocol import TokenLogprobs
from quire.engine.metrics import RequestMetrics
from quire.text.text_tokens import TextToken


class Logprob(NamedTuple):
    """One candidate at one position."""

    logprob: float
    rank: int  # 1 is the likeliest
    decoded_token: str


class TokenLogprobTable(Mapping[int, Logprob]):
    """Token id -> Logprob at one position: the chosen token first, then the likeliest ones.

    A Logprob is made when somebody looks at it: most are written to an answer, and forgotten.
    """

    __slots__ = ("_found", "token")

    def __init__(self, found: TokenLogprobs, token: TextToken) -> None:
        self._found = found
        self.token = token

    @property
    def token_id(self) -> int:
        """The id of the chosen token."""
        return self.token.token_id

    @property
    def chosen(self) -> Logprob:
        return Logprob(self._found.logprob, self._found.rank, self.token.text(self.token_id))

    def at(self, token: TextToken) -> TokenLogprobTable:
        """The same entries, as another token reads in its text."""
        return TokenLogprobTable(self._found, token)

    def as_dict(self) -> dict[int, Logprob]:
        own, chosen, *_, begun = self.token  # whose texts there may be a hundred of: without calls
        table = {chosen: self.chosen}
        for rank, (token_id, logprob) in enumerate(self._found.top, 1):
            if token_id != chosen:
                text = (not begun and own[token_id]) or own.named(token_id, begun)
                table[token_id] = Logprob(logprob, rank, text)
        return table

    def __getitem__(self, token_id: int) -> Logprob:
        return self.as_dict()[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return 1 + sum(token_id != self.token_id for token_id, _ in self._found.top)

    def items(self) -> ItemsView[int, Logprob]:
        return self.as_dict().items()

    def values(self) -> ValuesView[Logprob]:
        return self.as_dict().values()

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def __reduce__(self) -> tuple[type, tuple[dict[int, Logprob]]]:
        return dict, (self.as_dict(),)  # what tells a token's text stays where it is


@dataclass
class CompletionOutput:
    """One of a request's n outputs."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # None unless logprobs were asked for
    logprobs: list[TokenLogprobTable] | None = None
    finish_reason: str | None = None  # stop, length, abort or error
    stop_reason: int | str | None = None  # the stop token or string, if one ended it


@dataclass
class RequestOutput:
    """A finished request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobTable | None] | None  # None for the first token
    metrics: RequestMetrics
    finished: bool = True
    vector: Sequence[float] | None = None  # of its prompt, where that was asked for
    error: str | None = None  # why it ended, where the finish reason of an output is error

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were found in the prefix cache."""
        return self.metrics.cached_tokens


@dataclass
class RunningOutput:
    """A request that has not finished, by what its outputs hold until now."""

    request_id: str
    prompt: str | None
    outputs: list[CompletionOutput]
    finished: bool = False


class PromptProgress(NamedTuple):
    """How far a prompt has been computed. ``cached``: tokens of it that had been before."""

    total: int
    cached: int
    processed: int  # the cached ones too
    seconds: float  # since it was begun


class Delta(NamedTuple):
    """What one step added to one of a request's outputs: several tokens, where some were drafted.

    A beam's tokens come all at once, when the search is over. With best_of above n every branch
    gives deltas, and only ``final`` tells which of them are returned.
    """

    request_id: str
    index: int  # type: ignore[assignment]  # a tuple's method is hidden by it
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobTable, ...] | None
    seconds: float  # since the delta before; for the first, since the request arrived
    first: bool
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # what went wrong, where finish_reason is error
    final: RequestOutput | None = None  # with the delta that ends the request
    failure: QuireError | None = None  # what to tell the caller, if its reason is error or abort
    parts: tuple[Delta, ...] = ()  # what it was put together from, token by token
    progress: tuple[PromptProgress, ...] = ()  # before its tokens, where that is asked for
    cached_tokens: int = 0  # with an output's first token: of its prompt, found in the cache

    def singly(self) -> Iterator[Delta]:
        """The same, token by token."""
        *before, last = self.parts or (self,)
        yield from before
        yield last._replace(final=self.final)


class OutputsSoFar:
    """The outputs of one request, as its deltas have come. ``count``: how many there are."""

    def __init__(self, count: int) -> None:
        self._outputs = [CompletionOutput(index) for index in range(count)]

    def add(self, delta: Delta) -> None:
        output = self._outputs[delta.index]
        output.text += delta.text
        output.token_ids += delta.token_ids
        output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.logprobs is not None:
            output.logprobs = [*(output.logprobs or ()), *delta.logprobs]
            gained = sum(table.chosen.logprob for table in delta.logprobs)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + gained

    def copies(self) -> list[CompletionOutput]:
        """Copies that stay as they are when more comes."""
        return [
            replace(
                output,
                token_ids=[*output.token_ids],
                logprobs=None if output.logprobs is None else [*output.logprobs],
            )
            for output in self._outputs
        ]


def together(deltas: Sequence[Delta]) -> list[Delta]:
    """A step's deltas, token by token, as one for each output."""
    found: list[Delta] = []
    run = 0  # where the deltas begin that are the last one's, token by token
    for i, delta in enumerate(deltas):
        if found and found[-1].index == delta.index and found[-1].request_id == delta.request_id:
            found[-1] = joined(deltas[run : i + 1])
        else:
            found.append(delta)
            run = i
    return found


def joined(deltas: Sequence[Delta]) -> Delta:
    """Deltas of one output that follow each other, as one."""
    if len(deltas) == 1:
        return deltas[0]
    progress = tuple(chain.from_iterable(delta.progress for delta in deltas))
    deltas = [delta for delta in deltas if not delta.progress] or deltas[-1:]
    first, last = deltas[0], deltas[-1]
    tables = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return last._replace(
        text="".join([delta.text for delta in deltas]),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(tables)) if tables else None,
        seconds=first.seconds,
        first=first.first,
        cached_tokens=first.cached_tokens,
        parts=tuple(chain.from_iterable(delta.parts or (delta,) for delta in deltas)),
        progress=progress,
    )
