"""One request of a workload: when, how long, and what it shares with others. No text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

MOST_TOKENS = 2**24
"""A prompt or an output that is longer is taken for an error in the data."""


class Segment(NamedTuple):
    """A piece of content: equal names after equal beginnings mean equal tokens."""

    name: int | str
    num_tokens: int


class DraftCounts(NamedTuple):
    """What speculation gave."""

    num_drafts: int  # times that drafts were verified
    num_draft_tokens: int
    num_accepted_tokens: int  # of them


class Seen(NamedTuple):
    """What became of a request on the server that was recorded. Seconds on the recording's clock.

    in_line: it was read, tokenized, and stood in line from then on.
    """

    in_line: float
    admitted: float  # the first time
    first_token: float
    finished: float
    output_tokens: int  # over all outputs
    cached_tokens: int  # of its prompt, found in the prefix cache
    num_preemptions: int


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace. Its tokens are known by number only.

    content: what the prompt, and perhaps the output after it, begins with, where the trace tells.
        What it does not cover is like nothing else.
    drafts: over all outputs; None: not known.
    adapter: names what the model's weights are changed by; None: nothing.
    seen: how it fared where it was recorded; None: the trace does not tell.
    """

    arrival: float  # seconds after the trace's first request
    prompt_tokens: int
    output_tokens: int  # of each output
    n: int = 1  # outputs; with beam_search, beams too
    beam_search: bool = False
    max_tokens: int | None = None  # limit that was asked for; None: output_tokens
    content: tuple[Segment, ...] = ()
    drafts: DraftCounts | None = None
    adapter: str | None = None
    seen: Seen | None = None

    def clipped(self, max_model_len: int) -> TraceRequest:
        """The request as a model of this length can serve it: one token in and one out at least.

        The prompt is cut first to leave room for the output, the output to half of the length.
        """
        output = max(1, min(self.output_tokens, max_model_len // 2))
        prompt = max(1, min(self.prompt_tokens, max_model_len - output))
        limit = self.max_tokens and max(output, min(self.max_tokens, max_model_len - prompt))
        if (prompt, output, limit) == (self.prompt_tokens, self.output_tokens, self.max_tokens):
            return self
        known = prompt if prompt < self.prompt_tokens else prompt + output
        return replace(
            self,
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=limit,
            content=_cut(self.content, known),
        )

    def asking_pow2(self, max_model_len: int) -> TraceRequest:
        """The request with a limit of the power of two from its output up, if there is room.

        The paper's Orca (Pow2) "over-reserves the space for outputs by at most 2×" (Kwon et al.,
        section 6.1).
        """
        limit = 1 << (self.output_tokens - 1).bit_length()
        return replace(self, max_tokens=min(limit, max_model_len - self.prompt_tokens))


def block_names(
    content: Sequence[Segment], num_tokens: int, block_size: int, own_name: str
) -> list[bytes]:
    """Names of the full blocks of ``num_tokens`` tokens that begin with ``content``.

    Two blocks have one name exactly if they hold the same tokens after the same tokens. What the
    content does not cover is a last segment called ``own_name``.
    """
    content = _cut(content, num_tokens)
    covered = sum(segment.num_tokens for segment in content)
    names: list[bytes] = []
    path, start, end = b"", 0, block_size
    for name, length in (*content, Segment(own_name, num_tokens - covered)):
        place = blake2b(path + repr(name).encode(), digest_size=12).digest()
        stop = start + length
        if end <= stop:
            ends = range(end, stop + 1, block_size)
            names += [place + (one - start).to_bytes(4, "big") for one in ends]
            end = ends[-1] + block_size
        path, start = place + length.to_bytes(4, "big"), stop
    return names


def _cut(content: Sequence[Segment], num_tokens: int) -> tuple[Segment, ...]:
    """The first ``num_tokens`` tokens of the content."""
    kept = []
    for segment in content:
        if num_tokens <= 0:
            break
        kept.append(Segment(segment.name, min(segment.num_tokens, num_tokens)))
        num_tokens -= segment.num_tokens
    return tuple(kept)
