"""What crosses between gateway and replicas."""

from __future__ import annotations

from typing import Any, NamedTuple


class Call(NamedTuple):
    """A request for the app, received whole. scope: of ASGI, as far as it can be sent."""

    scope: dict[str, Any]
    body: bytes


class Whole(NamedTuple):
    """A whole answer. role: of the replica, as an engine's setting of that name has it."""

    replica: str
    status: int
    body: bytes
    role: str = "both"
