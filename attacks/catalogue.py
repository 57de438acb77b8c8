"""Every attack."""

from __future__ import annotations

from collections.abc import Sequence

from attacks.attack import Attack
from attacks.bodies import BODIES
from attacks.connections import CONNECTIONS
from attacks.fields import FIELDS
from attacks.grammars import GRAMMARS
from attacks.honest import HONEST, QUIET
from attacks.prompts import PROMPTS
from attacks.sessions import SESSIONS
from attacks.templates import TEMPLATES

ATTACKS: Sequence[Attack] = (
    *PROMPTS,
    *FIELDS,
    *GRAMMARS,
    *TEMPLATES,
    *BODIES,
    *SESSIONS,
    *CONNECTIONS,
)


def chosen(parts: Sequence[str]) -> list[Attack]:
    """Those with one of the parts in their name; without parts, all."""
    return [one for one in ATTACKS if not parts or any(part in one.name for part in parts)]


def named(name: str) -> Attack:
    return next(one for one in (QUIET, HONEST, *ATTACKS) if one.name == name)
