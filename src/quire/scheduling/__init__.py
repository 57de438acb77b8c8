"""Which sequences run, wait or give way. Standard library and ``quire.memory`` only."""

from quire.scheduling.decision import Decision, Verdict
from quire.scheduling.line import SchedulingPolicy
from quire.scheduling.pending import Executor, PendingStep
from quire.scheduling.preemption import Preemption, PreemptionMode, RecoveryCosts
from quire.scheduling.request import FinishReason, Request
from quire.scheduling.roster import Roster
from quire.scheduling.sampling_params import SamplingParams
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.sequence import MemoryStory, SequenceGroup
from quire.scheduling.session import Session, SessionEvent, SessionVerb
from quire.scheduling.step import (
    IN_FLIGHT,
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
    "Chunk",
    "Decision",
    "Executor",
    "FinishReason",
    "Forked",
    "MemoryStory",
    "Opened",
    "Outcome",
    "PendingStep",
    "Preemption",
    "PreemptionMode",
    "Progress",
    "Readout",
    "RecoveryCosts",
    "Request",
    "Roster",
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
    "TokenLogprobs",
    "Verdict",
    "confirmed",
]
