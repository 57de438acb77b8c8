"""Messages between processes, over sockets: typed, bounded, in order. Loads no torch."""

from quire.kernels.transport.connection import Connection, PeerError, Stranger, TooSlow
from quire.kernels.transport.port import Guest, Port

__all__ = ["Connection", "Guest", "PeerError", "Port", "Stranger", "TooSlow"]
