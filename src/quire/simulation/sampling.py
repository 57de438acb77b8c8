"""A model that writes nothing: tokens tell branches apart and outputs end, and that is all."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping

from quire.scheduling import Chunk, Sample, Step, StepResult
from quire.simulation.live import END, LiveRequest, own_token

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
                tokens = live[chunk.request.request_id].samples
                ends = self.sample(chunk, live) is _END
                result.samples[chunk.seq_id] = [_END] * len(tokens) if ends else tokens
            elif chunk.num_candidates:
                request_id = chunk.request.request_id
                place = f"{self._seed},{request_id},{chunk.start},{beams[request_id]}"
                drawn = _log_probs(place, chunk.num_candidates)
                result.candidates[chunk.seq_id] = [
                    (own_token(request_id, rank), log_prob) for rank, log_prob in enumerate(drawn)
                ]
                beams[request_id] += 1
        return result

    def sample(self, chunk: Chunk, live: Mapping[str, LiveRequest]) -> Sample:
        """The branch's own token, or the end of the text if that is all there is to say."""
        request = chunk.request
        known = live[request.request_id]
        if request.eos_token_ids:  # else max_tokens ends it
            produced = chunk.start + len(chunk.token_ids) - len(request.prompt_token_ids) + 1
            if produced >= known.output_tokens:
                return _END
        return known.samples[chunk.branch]


def _log_probs(place: str, count: int) -> list[float]:
    """Of the likeliest tokens, drawn by the ``place`` of a beam."""
    uniform = (zlib.crc32(place.encode()) + 1) / (2**32 + 1)
    likeliest = uniform ** (1 / 3)
    rest = math.log((1 - likeliest) or 1e-12)
    return [math.log(likeliest), *(rest + half for half in _LOG_HALVES[: count - 1])]
