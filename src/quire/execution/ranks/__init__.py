"""Steps that several processes compute together: what rank 0 tells the others, and what they do."""

from quire.execution.ranks.follower import follow
from quire.execution.ranks.leader import LeadingWorker, Orders
from quire.execution.ranks.source import SharedSource

__all__ = ["LeadingWorker", "Orders", "SharedSource", "follow"]
