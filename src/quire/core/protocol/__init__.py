"""What crosses between those who decide and those who carry out: values, and no scheduler."""

from quire.core.protocol.decision import (
    Decision,
    PreemptionMode,
    RecoveryCosts,
    SchedulingPolicy,
    Verdict,
)
from quire.core.protocol.executor import Executor, Parts, PendingStep, Roster
from quire.core.protocol.request import (
    KEPT_SECONDS,
    Adapter,
    FinishReason,
    Origin,
    Request,
    VectorSpan,
)
from quire.core.protocol.soft_cut import SoftCut, column_biases
from quire.core.protocol.step import (
    IN_FLIGHT,
    TO_DRAFT,
    Chunk,
    Opened,
    Outcome,
    Progress,
    Readout,
    Sample,
    Step,
    StepResult,
    TokenLogprobs,
    confirmed,
)

__all__ = [
    "IN_FLIGHT",
    "KEPT_SECONDS",
    "TO_DRAFT",
    "Adapter",
    "Chunk",
    "Decision",
    "Executor",
    "FinishReason",
    "Opened",
    "Origin",
    "Outcome",
    "Parts",
    "PendingStep",
    "PreemptionMode",
    "Progress",
    "Readout",
    "RecoveryCosts",
    "Request",
    "Roster",
    "Sample",
    "SchedulingPolicy",
    "SoftCut",
    "Step",
    "StepResult",
    "TokenLogprobs",
    "VectorSpan",
    "Verdict",
    "column_biases",
    "confirmed",
]
