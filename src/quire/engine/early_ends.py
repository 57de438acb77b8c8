"""Requests that end between two steps, of which the next one tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.core.errors import QueueTimeoutError, QuireError
from quire.core.protocol import Decision, Request
from quire.core.scheduling.request_queue import RequestQueue
from quire.engine.outputs import Delta
from quire.engine.progress import RequestProgress
from quire.engine.waiting_room import WaitingRoom


class EarlyEnds:
    """Ends requests for reasons of the engine's own.

    end: what its caller is to be told of a request that is aborted; None if it is not running.
    """

    def __init__(self, end: Callable[[str, QuireError], Delta | None]) -> None:
        self._end = end
        self.told: list[Delta] = []  # since the last call of ``take``

    def take(self) -> list[Delta]:
        """What is to be told."""
        told, self.told = self.told, []
        return told

    def add(self, deltas: list[Delta]) -> None:
        """These too are to be told, by whoever tells next."""
        self.told += deltas

    def unready(
        self,
        concerns: Callable[[Request], bool],
        error: QuireError,
        requests: Mapping[str, RequestProgress],
    ) -> None:
        """Some of the requests lack what cannot be had."""
        for request_id, progress in list(requests.items()):
            if concerns(progress.request):
                self._end_one(request_id, error)

    def expired(self, decision: Decision, room: WaitingRoom, queue: RequestQueue) -> None:
        """A request has waited too long, and the scheduler has ended it."""
        error = QueueTimeoutError(f"the request {decision.why}", room.seconds_until(queue.num_new))
        self._end_one(decision.request_id, error)

    def _end_one(self, request_id: str, error: QuireError) -> None:
        told = self._end(request_id, error)
        if told is not None:
            self.told.append(told)
