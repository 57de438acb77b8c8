"""Which sequences run, wait or give way. Standard library and ``quire.memory`` only."""

from quire.scheduling.adapters import AdapterSlots
from quire.scheduling.beyond import Beyond
from quire.scheduling.block_events import BlockEvents
from quire.scheduling.preemption import Preemption
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.sequence import MemoryStory, SequenceGroup
from quire.scheduling.sessions.session import Session, SessionEvent, SessionVerb

__all__ = [
    "AdapterSlots",
    "Beyond",
    "BlockEvents",
    "MemoryStory",
    "Preemption",
    "Scheduler",
    "SequenceGroup",
    "Session",
    "SessionEvent",
    "SessionVerb",
]
