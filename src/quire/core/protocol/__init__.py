"""What crosses between those who decide and those who carry out: values, and no scheduler."""

from quire.core.protocol.behind import Behind
from quire.core.protocol.decision import (
    Decision,
    PreemptionMode,
    RecoveryCosts,
    SchedulingPolicy,
    Verdict,
)
from quire.core.protocol.executor import Executor, Parts, PendingStep, Roster
from quire.core.protocol.pooling import Pooler, Pooling, PoolingParams
from quire.core.protocol.request import KEPT_SECONDS, Adapter, FinishReason, Origin, Request
from quire.core.protocol.sampling_params import SamplingParams
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
from quire.core.protocol.structured_outputs import Reasoning, StructuredOutputs
from quire.core.protocol.work import EVERYTHING, NOBODY, Decoders, Sight, Work, seen, work_of

__all__ = [
    "EVERYTHING",
    "IN_FLIGHT",
    "KEPT_SECONDS",
    "NOBODY",
    "TO_DRAFT",
    "Adapter",
    "Behind",
    "Chunk",
    "Decision",
    "Decoders",
    "Executor",
    "FinishReason",
    "Forked",
    "Opened",
    "Origin",
    "Outcome",
    "Parts",
    "PendingStep",
    "Pooler",
    "Pooling",
    "PoolingParams",
    "PreemptionMode",
    "Progress",
    "Readout",
    "Reasoning",
    "RecoveryCosts",
    "Request",
    "Roster",
    "Sample",
    "SamplingParams",
    "SchedulingPolicy",
    "Sight",
    "SoftCut",
    "Step",
    "StepResult",
    "StructuredOutputs",
    "TokenLogprobs",
    "Verdict",
    "Work",
    "column_biases",
    "confirmed",
    "seen",
    "work_of",
]
