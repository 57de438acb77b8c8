"""The prefix cache's contents, published for routers and indexers. Loads no torch."""

from quire.blocks.events.publisher import EventPublisher
from quire.blocks.events.wire import Wire

__all__ = ["EventPublisher", "Wire"]
