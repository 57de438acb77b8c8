"""What the prefix cache holds, published for routers and indexers. Never torch."""

from quire.events.publisher import EventPublisher
from quire.events.wire import Wire

__all__ = ["EventPublisher", "Wire"]
