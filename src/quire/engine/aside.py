"""What a step gives beside tokens: vectors of prompts, and failures of single sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.core.errors import EngineError, QuireError, RequestError
from quire.core.protocol import Outcome, Step
from quire.engine.progress import RequestProgress


def take_aside(
    step: Step,
    outcomes: Mapping[int, Outcome],
    request_of: Callable[[int], RequestProgress | None],
) -> dict[int, QuireError]:
    """What the scheduler is not concerned with. Why sequences cannot go on, by sequence."""
    failures: dict[int, QuireError] = {}
    for chunk in step.chunks:
        outcome = outcomes.get(chunk.seq_id)
        if outcome is None or (outcome.failure is None and outcome.vector is None):
            continue
        request = request_of(chunk.seq_id)
        if request is None:
            continue
        if outcome.failure is not None:
            failures[chunk.seq_id] = _failure(request, outcome.failure)
        else:
            request.vector = outcome.vector
    return failures


def _failure(request: RequestProgress, why: str) -> QuireError:
    """What it must be like is its caller's word."""
    if request.request.params.structured_outputs is not None:
        return RequestError(why, "structured_outputs")
    return EngineError(why)
