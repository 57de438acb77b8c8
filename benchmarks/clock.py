"""Where time goes, function by function, timed from outside."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class Clock:
    """Charges time to the innermost timed call."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self._inside = [0.0]  # by open call: the time of the timed calls in it

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                self.parts[part] += seconds - self._inside.pop()
                self._inside[-1] += seconds

        return call

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Time a module's function, or a class's method."""
        setattr(owner, name, self.timed(part, getattr(owner, name)))

    def take(self) -> Counter[str]:
        """What was charged since the last time."""
        parts, self.parts = self.parts, Counter()
        return parts
