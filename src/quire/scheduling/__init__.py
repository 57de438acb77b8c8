"""Which sequences run, wait or give way. Standard library and ``quire.memory`` only."""

from quire.scheduling.adapters import AdapterSlots
from quire.scheduling.beyond import Beyond
from quire.scheduling.block_events import BlockEvents
from quire.scheduling.preemption import Preemption
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.sequence import MemoryStory, SequenceGroup
from quire.scheduling.sessions.session import Ring, Session, SessionEvent, SessionVerb
from quire.scheduling.waiting import WaitEstimate

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
