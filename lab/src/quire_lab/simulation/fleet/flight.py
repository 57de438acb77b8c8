"""A request under way in a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.memory import BlockHash
from quire.engine.traces.request import TraceRequest


class Flight:
    """A request from its arrival to its end, wherever it is.

    trace: with the time of its first arrival. times_lost: by replicas that failed.
    ask: the ``Ask`` for its prompt's blocks, while another replica computes them.
    source: slot and life of the replica that computed its prompt, until one is chosen to continue.
    names: blocks that this other one was sent.
    """

    __slots__ = ("ask", "names", "number", "source", "times_lost", "trace")

    def __init__(self, number: int, trace: TraceRequest) -> None:
        self.number = number
        self.trace = trace
        self.times_lost = 0
        self.ask: object | None = None
        self.source: tuple[int, int] | None = None
        self.names: Sequence[BlockHash] = ()

    def begin_anew(self) -> None:
        """Its replica is gone."""
        self.times_lost += 1
        self.ask = self.source = None
        self.names = ()

    @property
    def prompt(self) -> TraceRequest:
        """The request to a prefill engine: the prompt, and a token that is not used."""
        return replace(self.trace, output_tokens=1, max_tokens=None, n=1, beam_search=False)
