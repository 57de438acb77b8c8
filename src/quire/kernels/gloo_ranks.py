"""``RankGroup`` for processes of several machines: sums over torch's gloo, messages over TCP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from quire.core.errors import RankError
from quire.kernels.lines import RankConnection, call, late, wait_for_calls

_LOOK_EVERY = timedelta(seconds=0.1)
_PYTHON_LOOKS_EVERY = 1.0  # seconds, for signals such as Ctrl-C

_Result = TypeVar("_Result")


class GlooRanks:
    """``RankGroup`` of several machines.

    Rank 0 listens at a port, and the others connect to it. Sums go between all of them, over the
    network interface by which they reach rank 0, or the one that ``GLOO_SOCKET_IFNAME`` names.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        port: int,
        timeout: float,
        start_timeout: float = 600.0,
    ) -> None:
        """Wait until all ranks are connected.

        timeout: seconds that a rank may keep the others waiting.
        start_timeout: seconds until all are connected.
        ConfigError: the port is taken, or rank 0 cannot be reached, or has no rank of this number.
        """
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._reason = ""  # why the group has ended
        if rank == 0:
            self._lines = wait_for_calls(address, port, size, timeout, start_timeout)
        else:
            self._lines = {0: call(address, port, rank, size, timeout, start_timeout)}
        self._group: Any = self._guarded(lambda: self._connect(address, start_timeout))

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
        """See ``Ranks.gather``."""
        parts = self._all(x)
        return torch.stack(parts) if self.rank == 0 else None

    def tell(self, message: bytes) -> None:
        """See ``RankGroup.tell``."""
        self._guarded(lambda: self._send(message))

    def hear(self, timeout: float | None = None) -> bytes | None:
        """See ``RankGroup.hear``."""
        if timeout is not None:
            return self._guarded(lambda: self._lines[0].receive(timeout))
        while (message := self.hear(_PYTHON_LOOKS_EVERY)) is None:
            pass
        return message

    def answer(self, message: bytes) -> None:
        """See ``RankGroup.answer``."""
        self._guarded(lambda: self._send(message))

    def answers(self, timeout: float) -> list[bytes]:
        """See ``RankGroup.answers``."""
        until = time.monotonic() + timeout

        def next_of(line: RankConnection) -> bytes:
            message = line.receive(max(until - time.monotonic(), 0.0))
            if message is None:
                raise late(line.rank, timeout)
            return message

        return self._guarded(lambda: [next_of(self._lines[i]) for i in range(1, self.size)])

    def abort(self, reason: str) -> None:
        """See ``RankGroup.abort``."""
        if not self._reason:
            self._reason = reason
            for line in self._lines.values():
                line.end(reason)

    def _send(self, message: bytes) -> None:
        for line in self._lines.values():
            line.send(message)

    def _connect(self, address: str, start_timeout: float) -> ProcessGroupGloo:
        within = timedelta(seconds=self._timeout)
        if self.rank == 0:
            store = TCPStore(address, 0, self.size, True, within, wait_for_workers=False)
            self._send(str(store.port).encode())
        else:
            port = self._lines[0].receive(start_timeout)
            if port is None:
                raise late(0, start_timeout)
            store = TCPStore(address, int(port), self.size, False, within)
        if os.environ.get("GLOO_SOCKET_IFNAME") or not self._lines:
            return ProcessGroupGloo(store, self.rank, self.size, within)
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        own_address = next(iter(self._lines.values())).own_address
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
        options._timeout = within
        return ProcessGroupGloo(store, self.rank, self.size, options)

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
                for line in self._lines.values():
                    line.check()
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
