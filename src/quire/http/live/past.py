"""The last ten minutes, for whoever looks only after something has happened."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

from quire.http.live.state import Reader
from quire.http.live.types import Moment

logger = logging.getLogger(__name__)

_KEPT, _APART = 600.0, 3.0  # seconds


class Past:
    """Notes a moment now and then, while there are steps: an idle engine is left alone.

    moments: oldest first. To be touched in the engine's thread.
    """

    def __init__(self, reader: Reader, clock: Callable[[], float]) -> None:
        self._reader, self._clock = reader, clock
        self.moments: deque[Moment] = deque(maxlen=round(_KEPT / _APART))
        self._due = 0.0

    def observe(self) -> None:
        """A step has ended."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _APART
            try:
                self.moments.append(self._reader.moment(0))
            except Exception:  # who looks must not end who serves
                logger.exception("the last ten minutes are noted no more")
                self._due = math.inf
