"""Which sequences run, wait or give way. Standard library and ``quire.core.memory`` only."""

from quire.core.scheduling.adapters import AdapterSlots
from quire.core.scheduling.beyond import Beyond
from quire.core.scheduling.block_events import BlockEvents
from quire.core.scheduling.preemption import Preemption
from quire.core.scheduling.scheduler import Scheduler
from quire.core.scheduling.sequence import MemoryStory, SequenceGroup
from quire.core.scheduling.sessions.session import Ring, Session, SessionEvent, SessionVerb
from quire.core.scheduling.waiting import WaitEstimate

__all__ = [
    "AdapterSlots",
    "Beyond",
    "BlockEvents",
    "MemoryStory",
    "Preemption",
    "Ring",
    "Scheduler",
    "SequenceGroup",
    "Session",
    "SessionEvent",
    "SessionVerb",
    "WaitEstimate",
]
