"""What became of a step's drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.core.protocol import Outcome, Step
from quire.engine.progress import RequestProgress
from quire.engine.stats import EngineStats


def count_drafts(
    step: Step,
    outcomes: Mapping[int, Outcome],
    request_of: Callable[[int], RequestProgress | None],
    stats: EngineStats,
) -> dict[int, int]:
    """Drafts that have turned out right, by sequence. As many of its next tokens were drafted.

    Where a text ends before the last of them, its request has had no use of those after.
    """
    right: dict[int, int] = {}
    for chunk in step.chunks:
        if chunk.readout is None or chunk.readout.rows == 1:
            continue
        request, outcome = request_of(chunk.seq_id), outcomes[chunk.seq_id]
        if request is not None and outcome.tokens:
            drafted, right[chunk.seq_id] = chunk.readout.rows - 1, len(outcome.tokens) - 1
            stats.observe_drafts(drafted, right[chunk.seq_id])
            request.num_drafts += 1
            request.num_draft_tokens += drafted
    return right
