"""Which sequences run, wait or give way. Standard library and ``quire.memory`` only."""

from quire.scheduling.request import FinishReason, Request
from quire.scheduling.sampling_params import SamplingParams
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.sequence import MemoryStory, SequenceGroup
from quire.scheduling.step import (
    Chunk,
    Decision,
    Executor,
    Progress,
    Sample,
    Step,
    StepResult,
    TokenLogprobs,
    Verdict,
)

__all__ = [
    "Chunk",
    "Decision",
    "Executor",
    "FinishReason",
    "MemoryStory",
    "Progress",
    "Request",
    "Sample",
    "SamplingParams",
    "Scheduler",
    "SequenceGroup",
    "Step",
    "StepResult",
    "TokenLogprobs",
    "Verdict",
]
