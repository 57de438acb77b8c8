"""Results of steps for schedulers that no model stands behind."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.protocol import Outcome, Progress, Sample, Step, StepResult
from quire.core.scheduling import Scheduler


def answer(step: Step, token_id: int = 7) -> StepResult:
    """The same token wherever one is asked for; drafts are confirmed if they are that token."""
    token, outcomes = Sample(token_id), {}
    for chunk in step.chunks:
        if chunk.readout is not None:
            right = 0
            while right < len(chunk.drafts) and chunk.drafts[right] == token_id:
                right += 1
            forks = [token] * (chunk.readout.draws - 1)
            outcomes[chunk.seq_id] = Outcome([token] * (1 + right), forks)
    return StepResult(outcomes)


def take_in(
    scheduler: Scheduler,
    step: Step,
    result: StepResult,
    now: float = 0.0,
    is_over: Callable[[Progress], bool] = lambda progress: False,
) -> list[Progress]:
    """``Scheduler.update``: the tokens that it has told of; a text ends where ``is_over``."""
    progress: list[Progress] = []

    def told(one: Progress) -> bool:
        progress.append(one)
        return is_over(one)

    scheduler.update(step, result, now, told)
    return progress
