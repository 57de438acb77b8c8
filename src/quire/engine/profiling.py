"""Watching an engine for some seconds."""

from __future__ import annotations

from quire.core.errors import BusyError
from quire.engine.engine import Engine
from quire.engine.tracing import Profile

_PROFILE = "profile"


def begin_profile(engine: Engine) -> Profile:
    """Note what the engine does from now on. BusyError if somebody does so already."""
    if _PROFILE in engine.parts.listeners:
        raise BusyError("a profile is being taken already; ask again when it is done")
    profile = Profile(engine.clock())
    engine.parts.listen(_PROFILE, profile.part)
    engine.watchers.add(profile)
    return profile


def end_profile(engine: Engine, profile: Profile) -> None:
    """Note what has not ended yet, and no more."""
    engine.parts.ignore(_PROFILE)
    engine.watchers.remove(profile)
    profile.finish(engine.standings())
