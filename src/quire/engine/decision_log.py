"""The latest decisions about requests."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quire.core.protocol import Decision, Verdict
from quire.engine.progress import RequestProgress

logger = logging.getLogger(__name__)

_KEPT = 1000


class Noted(NamedTuple):
    """number: of all decisions that have been noted, from 1."""

    number: int
    time: float
    decision: Decision


class DecisionLog:
    """The latest thousand, oldest first, each with a number.

    Of one request that waits, step after step, only the newest figures are kept, under a new
    number.

    waiting: by request, what the latest step has decided about those that wait.
    """

    def __init__(self) -> None:
        self._noted: deque[Noted] = deque(maxlen=_KEPT)
        self.number = 0  # of the latest
        self.waiting: dict[str, Decision] = {}

    def since(self, number: int) -> list[Noted]:
        """Those after it that are still kept."""
        return [noted for noted in self._noted if noted.number > number]

    def take(self, decisions: Iterable[Decision], now: float) -> None:
        """Those of one step."""
        self.waiting = {d.request_id: d for d in decisions if d.what is Verdict.WAIT}
        while self.waiting and self._noted:
            last = self._noted[-1].decision
            if last.what is not Verdict.WAIT or last.request_id not in self.waiting:
                break
            self._noted.pop()
        for decision in decisions:
            self.note(decision, now)

    def note(self, decision: Decision, now: float) -> None:
        self.number += 1
        self._noted.append(Noted(self.number, now, decision))


def tell(decision: Decision, requests: Mapping[str, RequestProgress]) -> None:
    """Log it. requests: by the names that they have here; a log has those of the HTTP requests."""
    facts = {"engine_request_id": decision.request_id}
    if decision.request_id in requests:
        origin = requests[decision.request_id].request.origin
        facts["request_id"] = origin.request_id
    logger.info("%s", decision, extra=facts)
