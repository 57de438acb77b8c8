"""A model without texts: its tokens tell branches apart and end outputs."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

from quire.core.protocol import Opened, Outcome, Roster, Sample, Step, StepResult, confirmed
from quire_lab.simulation.drafting import SimulatedDrafting
from quire_lab.simulation.live import END, LiveRequest, own_token

_ENDS = Outcome((Sample(END),))
_LOG_HALVES = [math.log(0.5**rank) for rank in range(1, 1025)]


class SimulatedModel:
    """Samples for steps, and candidates for beams from a seeded model.

    A beam's next token is sure or open: the likeliest has probability p = u ** (1 / 3), u uniform,
    so 0.75 in the mean; the others halve the rest from rank to rank.

    drafting: who drafts for it, and how well; None: nobody.
    """

    def __init__(self, seed: int = 0, drafting: SimulatedDrafting | None = None) -> None:
        self.seed, self.drafting = seed, drafting
        self._roster = Roster()

    def results(self, step: Step, live: Mapping[str, LiveRequest]) -> StepResult:
        """The results of every chunk that is to be read out."""
        outcomes = {}
        beams: dict[str, int] = {}
        for chunk, known in zip(step.chunks, self._roster.follow(step), strict=True):
            readout, request_id = chunk.readout, known.request.request_id
            if readout is None:
                continue
            if readout.candidates:
                beam = beams.get(request_id, 0)
                beams[request_id] = beam + 1
                drawn = _Candidates(
                    f"{self.seed},{request_id},{chunk.start},{beam}",
                    own_token(request_id, 0),
                    readout.candidates,
                )
                outcomes[chunk.seq_id] = Outcome(candidates=drawn)
                continue
            end = chunk.start + len(chunk.token_ids)
            if readout.rows == 1 and readout.draws == 1:  # by far the most
                outcomes[chunk.seq_id] = _outcome(known, end, live)
                continue
            lengths = range(end - readout.rows + 1, end + 1)
            tokens = [_sample(known, length, live) for length in lengths]
            forks = [_sample(known._replace(branch=i), end, live) for i in range(1, readout.draws)]
            outcomes[chunk.seq_id] = Outcome(confirmed(tokens, chunk.drafts), forks)
        return StepResult(outcomes)


def _sample(known: Opened, length: int, live: Mapping[str, LiveRequest]) -> Sample:
    return _outcome(known, length, live).tokens[0]


def _outcome(known: Opened, length: int, live: Mapping[str, LiveRequest]) -> Outcome:
    """After ``length`` tokens the branch's own one, or the end of a text that is complete by it."""
    request = known.request
    own = live[request.request_id]
    if request.eos_token_ids:  # else max_tokens ends it
        produced = length - len(request.prompt_token_ids) + 1
        if produced >= own.output_tokens:
            return _ENDS
    return own.outcomes[known.branch]


class _Candidates(Sequence[tuple[int, float]]):
    """The likeliest tokens and their log-probabilities, drawn by the ``place`` of a beam.

    Of most of them nobody asks.
    """

    __slots__ = ("_count", "_first", "_likeliest", "_rest")

    def __init__(self, place: str, first: int, count: int) -> None:
        uniform = (zlib.crc32(place.encode()) + 1) / (2**32 + 1)
        likeliest = uniform ** (1 / 3)
        self._first, self._count, self._likeliest = first, count, math.log(likeliest)
        self._rest = math.log((1 - likeliest) or 1e-12)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rank):  # type: ignore[no-untyped-def]  # as overloads of Sequence
        if not rank:
            return self._first, self._likeliest
        if rank >= self._count:
            raise IndexError(rank)
        return self._first + rank, self._rest + _LOG_HALVES[rank - 1]
