"""What an engine has room for, and what holds for it; a simulated one too. Never torch."""

from quire.capacity.description import Capacity, describe_lanes
from quire.capacity.lanes import Lane
from quire.capacity.limits import EngineLimits
from quire.capacity.pool import FREE_MEMORY_SHARE, Room, fill

__all__ = [
    "FREE_MEMORY_SHARE",
    "Capacity",
    "EngineLimits",
    "Lane",
    "Room",
    "describe_lanes",
    "fill",
]
