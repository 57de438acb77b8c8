"""A model that writes nothing: tokens tell branches apart and outputs end, and that is all."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping

from quire.scheduling import Chunk, Sample, Step, StepResult
from quire.simulation.live import END, LiveRequest

_TOKENS = [Sample(index) for index in range(256)]  # by branch
_END = Sample(END)
_LOG_HALVES = [math.log(0.5**rank) for rank in range(1, 1025)]


class SimulatedModel:
    """Samples for steps, and candidates for beams from a seeded model.

    A beam's next token is sure or open: the likeliest has probability p = u ** (1 / 3), u uniform,
    so 0.75 in the mean; the others halve the rest from rank to rank.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def results(self, step: Step, live: Mapping[str, LiveRequest]) -> StepResult:
        result = StepResult({})
        beams: Counter[str] = Counter()
        for chunk in step.chunks:
            if chunk.num_samples == 1:
                result.samples[chunk.seq_id] = [self.sample(chunk, live)]
            elif chunk.num_samples:
                first = self.sample(chunk, live)
                tokens = _TOKENS[: chunk.num_samples]
                ends = first is _END
                result.samples[chunk.seq_id] = [_END] * len(tokens) if ends else tokens
            elif chunk.num_candidates:
                request_id = chunk.request.request_id
                place = f"{self._seed},{request_id},{chunk.start},{beams[request_id]}"
                result.candidates[chunk.seq_id] = _candidates(place, chunk.num_candidates)
                beams[request_id] += 1
        return result

    def sample(self, chunk: Chunk, live: Mapping[str, LiveRequest]) -> Sample:
        """The branch's own token, or the end of the text if that is all there is to say."""
        request = chunk.request
        if request.eos_token_ids:  # else max_tokens ends it
            produced = chunk.start + len(chunk.token_ids) - len(request.prompt_token_ids) + 1
            if produced >= live[request.request_id].output_tokens:
                return _END
        return _TOKENS[chunk.branch]


def _candidates(place: str, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens and their log-probabilities, drawn by the ``place`` of a beam."""
    uniform = (zlib.crc32(place.encode()) + 1) / (2**32 + 1)
    likeliest = uniform ** (1 / 3)
    rest = math.log((1 - likeliest) or 1e-12)
    others = [(rank, rest + _LOG_HALVES[rank - 1]) for rank in range(1, count)]
    return [(0, math.log(likeliest)), *others]
