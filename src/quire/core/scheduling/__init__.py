"""Which sequences run, wait or give way. Standard library, memory and protocol only."""

from quire.core.scheduling.admission import BatchLimits
from quire.core.scheduling.capability import Capability, Hooks
from quire.core.scheduling.preemption import Recovery
from quire.core.scheduling.prefix_cache import Caching
from quire.core.scheduling.request_queue import Queueing
from quire.core.scheduling.scheduler import Scheduler
from quire.core.scheduling.sequence import Extension, Hypothesis, Search, SequenceGroup
from quire.core.scheduling.session import Session

__all__ = [
    "BatchLimits",
    "Caching",
    "Capability",
    "Extension",
    "Hooks",
    "Hypothesis",
    "Queueing",
    "Recovery",
    "Scheduler",
    "Search",
    "SequenceGroup",
    "Session",
]
