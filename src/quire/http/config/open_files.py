"""How many files, and so connections, this process may have open."""

from __future__ import annotations

import resource

_OTHERS = 128  # files that are not connections: weights, logs, devices


def most_connections() -> int | None:
    """Connections that the limit of open files allows; None: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else max(0, hard - _OTHERS)


def make_room(connections: int, backlog: int) -> None:
    """Raise the limit of open files for these connections, and some that will be refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + backlog + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
