"""A failing script, with as few events as it fails with (delta debugging; Zeller, 1999)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from world.script import Event, Script


def shrink(script: Script, fails: Callable[[Script], bool]) -> Script:
    """``script`` without all events that can be left out one after the other."""
    events = list(script.events)
    size = len(events) // 2
    while size:
        start = 0
        while start < len(events):
            fewer = events[:start] + events[start + size :]
            if fails(replace(script, events=tuple[Event, ...](fewer))):
                events = fewer
            else:
                start += size
        size //= 2
    return replace(script, events=tuple(events))
