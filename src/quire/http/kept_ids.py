"""Names of what an engine keeps for its clients: they say which of several replicas has it."""

from __future__ import annotations

import re
import uuid

_KEPT = re.compile(r"[-_]([a-z0-9]{1,32})-[0-9a-f]{32}")


def kept_id(replica: str) -> str:
    """A new one, to go behind a prefix such as "session-"."""
    return f"{replica}-{uuid.uuid4().hex}" if replica else uuid.uuid4().hex


def keeper_of(text: str) -> str | None:
    """The replica whose id ``text`` holds, if it holds one."""
    found = _KEPT.search(text)
    return None if found is None else found[1]
