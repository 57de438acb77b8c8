"""What crosses between those who decide and those who carry out: values, and no scheduler."""

from quire.protocol.behind import Behind, last_of
from quire.protocol.block_events import AllBlocksCleared, BlockEvent, BlocksRemoved, BlocksStored
from quire.protocol.decision import Decision, Verdict
from quire.protocol.parts import Parts
from quire.protocol.pending import Executor, PendingStep
from quire.protocol.policy import PreemptionMode, RecoveryCosts, SchedulingPolicy
from quire.protocol.pooling import Pooler, Pooling, PoolingParams
from quire.protocol.request import Adapter, FinishReason, Origin, Request
from quire.protocol.roster import Roster
from quire.protocol.sampling_params import SamplingParams
from quire.protocol.soft_cut import SoftCut, column_biases
from quire.protocol.step import (
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
from quire.protocol.structured_outputs import Reasoning, Rules, StructuredOutputs
from quire.protocol.work import EVERYTHING, Sight, Work, work_of

__all__ = [
    "EVERYTHING",
    "IN_FLIGHT",
    "TO_DRAFT",
    "Adapter",
    "AllBlocksCleared",
    "Behind",
    "BlockEvent",
    "BlocksRemoved",
    "BlocksStored",
    "Chunk",
    "Decision",
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
    "Rules",
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
    "last_of",
    "work_of",
]
