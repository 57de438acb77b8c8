"""``RankGroup`` of several machines: their sums go over torch's gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from quire.core.errors import RankError

_LOOK_EVERY = timedelta(seconds=0.1)

_Result = TypeVar("_Result")
Inbox = SimpleQueue[bytes | None]
"""What another rank sends of steps; None wakes who waits for it."""


def meeting_point(address: str, size: int, timeout: float) -> TCPStore:
    """A store at a free port of rank 0's machine, by which ranks learn how to reach each other."""
    within = timedelta(seconds=timeout)
    return TCPStore(address, 0, size, True, within, wait_for_workers=False)


class GlooRanks:
    """``RankGroup`` of several machines, whose messages come by the connections that ranks have.

    Sums go between all of them, over the network interface of ``own_address``, or the one that
    ``GLOO_SOCKET_IFNAME`` names. ``abort`` ends what this rank waits in: who watches the
    connections ends the others.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        send: Callable[[bytes], None],
        inboxes: Mapping[int, Inbox],
        meet: TCPStore | tuple[str, int],
        own_address: str,
        timeout: float,
    ) -> None:
        """Wait until all ranks are connected.

        send: to rank 0 or, from there, to all others. RankError: they are gone.
        inboxes: of rank 0 or, there, of all others.
        meet: rank 0's ``meeting_point``, or its address and port.
        timeout: seconds that a rank may keep the others waiting.
        """
        self.rank = rank
        self.size = size
        self._send, self._inboxes = send, inboxes
        self._timeout = timeout
        self._reason = ""  # why the group has ended
        self._group: Any = self._guarded(lambda: self._connect(meet, own_address))

    def add_up(self, x: Tensor) -> None:
        """See ``Ranks.add_up``. x is of floats."""
        if not x.is_floating_point() or x.device.type != "cpu":
            raise TypeError(f"ranks add up no {x.dtype} on {x.device}")
        parts = self._all(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._all(x)
        return torch.stack(parts) if self.rank == 0 else None

    def tell(self, message: bytes) -> None:
        self._guarded(lambda: self._send(message))

    def hear(self, timeout: float | None = None) -> bytes | None:
        return self._guarded(lambda: self._next(0, timeout))

    def answer(self, message: bytes) -> None:
        self._guarded(lambda: self._send(message))

    def answers(self, timeout: float) -> list[bytes]:
        until = time.monotonic() + timeout

        def next_of(rank: int) -> bytes:
            message = self._next(rank, max(until - time.monotonic(), 0.0))
            if message is None:
                raise RankError(f"rank {rank} did not answer within {timeout:.1f} seconds")
            return message

        return self._guarded(lambda: [next_of(rank) for rank in range(1, self.size)])

    def abort(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            for inbox in self._inboxes.values():
                inbox.put(None)

    def _next(self, rank: int, seconds: float | None) -> bytes | None:
        try:
            message = self._inboxes[rank].get(timeout=seconds)
        except Empty:
            return None
        if message is None:
            raise RankError(self._reason)
        return message

    def _connect(self, meet: TCPStore | tuple[str, int], own_address: str) -> ProcessGroupGloo:
        within = timedelta(seconds=self._timeout)
        if not isinstance(meet, TCPStore):
            meet = TCPStore(*meet, self.size, False, within)
        if os.environ.get("GLOO_SOCKET_IFNAME"):
            return ProcessGroupGloo(meet, self.rank, self.size, within)
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
        options._timeout = within
        return ProcessGroupGloo(meet, self.rank, self.size, options)

    def _all(self, x: Tensor) -> list[Tensor]:
        """What each rank gives, in their order."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._guarded(lambda: self._wait(self._group.allgather([parts], [x])))
        return parts

    def _wait(self, work: Any) -> None:
        until = time.monotonic() + self._timeout
        while True:
            over = work.is_completed()
            try:
                work.wait(_LOOK_EVERY)
                return
            except RuntimeError as error:  # it has failed, or is not done yet
                if self._reason:
                    raise RankError(self._reason) from None
                if over:
                    raise RankError(f"a rank is gone: {error}") from None
            if time.monotonic() > until:
                raise RankError(f"a rank did not answer within {self._timeout:.1f} seconds")

    def _guarded(self, body: Callable[[], _Result]) -> _Result:
        """The result of a function; if it fails, all other ranks get the error."""
        if self._reason:
            raise RankError(self._reason)
        try:
            return body()
        except RankError as error:
            self.abort(str(error))
            raise RankError(self._reason) from None
        except RuntimeError as error:  # of gloo, when it connects
            self.abort(f"ranks cannot reach each other: {error}")
            raise RankError(self._reason) from None
