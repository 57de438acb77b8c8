"""See ``support.server_fixtures``."""

from support.server_fixtures import _shared, server, shared

__all__ = ["_shared", "server", "shared"]
