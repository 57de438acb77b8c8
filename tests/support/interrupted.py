"""An interrupt at any line of Quire's own code, as no signal could be aimed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import quire

_SOURCE = str(Path(quire.__file__).parent)


def lines_of(act: Callable[[], object]) -> int:
    """How many lines a call goes through."""
    return _traced(act, 0)


def interrupted(act: Callable[[], object], line: int) -> bool:
    """Do it, with a KeyboardInterrupt before its so-manieth line; whether that came out of it."""
    try:
        _traced(act, line)
    except KeyboardInterrupt:
        return True
    return False


def _traced(act: Callable[[], object], line: int) -> int:
    seen = 0

    def begin(frame: FrameType, event: str, arg: Any) -> Any:
        return each if frame.f_code.co_filename.startswith(_SOURCE) else None

    def each(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return each

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        act()
    finally:
        sys.settrace(before)
    return seen
