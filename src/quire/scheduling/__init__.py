"""Which sequences run, wait or give way. Standard library and ``quire.memory`` only."""

from quire.scheduling.decision import Decision, Verdict
from quire.scheduling.line import SchedulingPolicy
from quire.scheduling.preemption import Preemption, PreemptionMode, RecoveryCosts
from quire.scheduling.replica import Replica
from quire.scheduling.request import FinishReason, Request
from quire.scheduling.sampling_params import SamplingParams
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.sequence import MemoryStory, SequenceGroup
from quire.scheduling.session import Session, SessionEvent, SessionVerb
from quire.scheduling.step import (
    IN_FLIGHT,
    Chunk,
    Executor,
    PipelinedExecutor,
    Progress,
    Sample,
    Step,
    StepResult,
    StepUnderWay,
    TokenLogprobs,
)

__all__ = [
    "IN_FLIGHT",
    "Chunk",
    "Decision",
    "Executor",
    "FinishReason",
    "MemoryStory",
    "PipelinedExecutor",
    "Preemption",
    "PreemptionMode",
    "Progress",
    "RecoveryCosts",
    "Replica",
    "Request",
    "Sample",
    "SamplingParams",
    "Scheduler",
    "SchedulingPolicy",
    "SequenceGroup",
    "Session",
    "SessionEvent",
    "SessionVerb",
    "Step",
    "StepResult",
    "StepUnderWay",
    "TokenLogprobs",
    "Verdict",
]
