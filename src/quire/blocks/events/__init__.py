"""What the prefix cache holds, published for routers and indexers. Never torch."""

from quire.blocks.events.publisher import EventPublisher
from quire.blocks.events.wire import Wire

__all__ = ["EventPublisher", "Wire"]
