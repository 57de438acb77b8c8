"""One request of a workload: when, how long, and what it shares with others. No text."""

from __future__ import annotations

from dataclasses import dataclass
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
