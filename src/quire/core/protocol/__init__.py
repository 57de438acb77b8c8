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
    Params,
    PooledPrompt,
    Request,
)
from quire.core.protocol.soft_cut import SoftCut, column_biases
from quire.core.protocol.step import (
    IN_FLIGHT,
    TO_DRAFT,
    Chunk,
    Forked,
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
    "Forked",
    "Opened",
    "Origin",
    "Outcome",
    "Params",
    "Parts",
    "PendingStep",
    "PooledPrompt",
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
    "Verdict",
    "column_biases",
    "confirmed",
]
