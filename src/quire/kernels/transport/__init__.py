"""Messages between processes, over sockets: typed, bounded, in order. Loads no torch."""

from quire.kernels.transport.connection import Connection
from quire.kernels.transport.frames import Language, PeerError, Stranger, TooSlow
from quire.kernels.transport.listener import Caller, Listener

__all__ = ["Caller", "Connection", "Language", "Listener", "PeerError", "Stranger", "TooSlow"]
