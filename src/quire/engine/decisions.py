"""The latest decisions about requests, and those that an operator is told of."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from quire.engine.progress import RequestProgress
from quire.protocol import Decision, Step, Verdict

logger = logging.getLogger(__name__)

_KEPT = 1000


class DecisionLog:
    """Keeps the latest, oldest first. Of who still waits, only the newest figures."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=_KEPT)

    def add(self, decision: Decision) -> None:
        self._kept.append(decision)

    def note(self, step: Step, requests: Mapping[str, RequestProgress]) -> None:
        """requests: by the names that they have here; a log has those of the HTTP requests."""
        waits = {d.request_id for d in step.decisions if d.what is Verdict.WAIT}
        while waits and self._kept and self._kept[-1].what is Verdict.WAIT:
            if self._kept[-1].request_id not in waits:
                break
            self._kept.pop()
        for decision in step.decisions:
            self.add(decision)
            if decision.what.preempts:
                facts = {"engine_request_id": decision.request_id}
                if decision.request_id in requests:
                    origin = requests[decision.request_id].request.origin
                    facts["request_id"] = origin.request_id
                logger.info("%s", decision, extra=facts)

    def latest(self) -> list[Decision]:
        return list(self._kept)
