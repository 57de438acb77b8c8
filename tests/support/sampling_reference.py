"""Sampling in plain Python: one row, float64, the definitions word for word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quire.core.protocol import Request
from quire.core.protocol.step import Sample
from quire.execution.sampling.past import Past
from quire.execution.sampling.rows import uniform
from quire.execution.sampling.sampler import SampleRow, draw
from quire.kernels.ops import Kernels
from quire.kernels.reference import ReferenceKernels
from quire.text.params import SamplingParams

EOS = 2


def make_row(*, seed: int = 0, branch: int = 0, **asked: Any) -> SampleRow:
    """``asked``: prompt, output, position (else the output's length), bad_word_ids, and params."""
    prompt, output = asked.pop("prompt", (0,)), asked.pop("output", ())
    position, bad = asked.pop("position", len(output)), asked.pop("bad_word_ids", ())
    params = SamplingParams(bad_words=[str(word) for word in bad], max_tokens=None, **asked)
    eos = frozenset({EOS})
    request = Request("r", prompt, params, 100, seed, eos_token_ids=eos, bad_word_ids=bad)
    past = None
    if params.needs_history:
        past = Past(prompt)
        past.take(0, output)
    return SampleRow(request, params, branch, position, past)


def sample(
    logits: Tensor, rows: Sequence[SampleRow], kernels: Kernels | None = None
) -> list[Sample | None]:
    """What ``draw`` chooses, once it is known."""
    return draw(logits, rows, kernels or ReferenceKernels()).read() if rows else []


def expected_logits(logits: list[float], row: SampleRow, output: tuple[int, ...]) -> list[float]:
    """One row's logits after all that its request asks for, but for temperature and filters."""
    edited = edited_by_definition(logits, row, output, bans=True)
    if max(edited) == -math.inf:  # bans yield where they leave nothing
        return edited_by_definition(logits, row, output, bans=False)
    return edited


def edited_by_definition(
    logits: list[float], row: SampleRow, output: tuple[int, ...], *, bans: bool
) -> list[float]:
    request, params = row.request, row.request.params
    edited = list(logits)
    for token in range(len(edited)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            edited[token] = -math.inf
        for *start, last in request.bad_word_ids:
            if bans and token == last and list(output[len(output) - len(start) :]) == start:
                edited[token] = -math.inf
        too_early = bans and len(output) < params.min_tokens
        if too_early and token in {EOS, *params.stop_token_ids}:
            edited[token] = -math.inf
        edited[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in request.prompt_token_ids or token in output:
            penalty = params.repetition_penalty
            edited[token] *= 1 / penalty if edited[token] > 0 else penalty
        edited[token] -= params.frequency_penalty * output.count(token)
        edited[token] -= params.presence_penalty * (token in output)
    return edited


def expected_distribution(
    logits: list[float], params: SamplingParams
) -> tuple[list[tuple[int, float]], float]:
    """Tokens and probabilities in the order of the draw; how clear of its bounds the choice is."""
    top = max(logits)
    weights = {t: math.exp((x - top) / params.temperature) for t, x in enumerate(logits)}
    margins = [abs(w - params.min_p) for w in weights.values() if w < 1 and params.min_p]
    kept = [(t, w) for t, w in weights.items() if w >= params.min_p]
    if 0 < params.top_k < len(logits) or params.top_p < 1:
        kept.sort(key=lambda item: (-item[1], item[0]))
        if params.top_k > 0:
            kept = kept[: params.top_k]
        total = math.fsum(w for _, w in kept)
        reached, nucleus = 0.0, []
        for token, weight in kept:
            if reached >= params.top_p * total and params.top_p < 1:
                break
            nucleus.append((token, weight))
            reached += weight
            margins.append(abs(reached / total - params.top_p) if params.top_p < 1 else 1.0)
        kept = nucleus
    total = math.fsum(w for _, w in kept)
    return [(t, w / total) for t, w in kept if w > 0], min(margins, default=1.0)


def expected_token(logits: list[float], row: SampleRow) -> tuple[int, float]:
    """The token, and how far from the next one the random number is."""
    params = row.request.params
    if params.greedy:
        return logits.index(max(logits)), 1.0
    distribution, margin = expected_distribution(logits, params)
    aim, reached = uniform(row.request.seed, row.branch, row.num_output_tokens), 0.0
    for token, probability in distribution:
        margin = min(margin, abs(aim - reached) if reached else 1.0)
        reached += probability
        if reached > aim:
            return token, min(margin, reached - aim if token != distribution[-1][0] else 1.0)
    return distribution[-1][0], 0.0
