"""Stand-in."""

from __future__ import annotations

import contextlib
import select
import socket

import torch
from torch import Tensor

from quire.errors import RankError


class SocketRanks:
    def __init__(self, rank, size, timeout, name, server=None):  # type: ignore
        self.rank, self.size, self.name, self._timeout = rank, size, name, timeout
        self._server, self._others = server, {}
        self._zero = None
        self._reason = None

    @classmethod
    def create(cls, size, timeout, instruction_set=""):  # type: ignore
        server = socket.create_server(("127.0.0.1", 0))
        return cls(0, size, timeout, str(server.getsockname()[1]), server)

    @classmethod
    def join(cls, name, rank, size, timeout, instruction_set=""):  # type: ignore
        self = cls(rank, size, timeout, name)
        self._zero = socket.create_connection(("127.0.0.1", int(name)))
        self._zero.sendall(rank.to_bytes(8, "big"))
        return self

    def _gathered(self):  # type: ignore
        while len(self._others) < self.size - 1:
            one, _ = self._server.accept()
            self._others[int.from_bytes(one.recv(8), "big")] = one
        return [self._others[rank] for rank in range(1, self.size)]

    def _send(self, to, message):  # type: ignore
        try:
            to.sendall(len(message).to_bytes(8, "big") + bytes(message))
        except OSError as error:
            raise RankError(self._reason or "gone") from error

    def _receive(self, of, timeout):  # type: ignore
        content, size = b"", 8
        header = True
        while True:
            while len(content) < size:
                try:
                    if not select.select([of], [], [], timeout)[0]:
                        if header and not content:
                            return None
                        raise RankError("late")
                    part = of.recv(size - len(content))
                except (OSError, ValueError):
                    part = b""
                if not part:
                    raise RankError(self._reason or "gone")
                content += part
            if not header:
                return content
            size, content, header = int.from_bytes(content, "big"), b"", False
            if not size:
                return b""

    def add_up(self, x: Tensor) -> None:
        if self.rank:
            self._send(self._zero, x.contiguous().view(-1).view(torch.uint8).numpy().data)
            got = self._receive(self._zero, self._timeout)
            x.copy_(torch.frombuffer(bytearray(got), dtype=x.dtype).view(x.shape))
            return
        total = x.float()
        for one in self._gathered():
            got = self._receive(one, self._timeout)
            total += torch.frombuffer(bytearray(got), dtype=x.dtype).view(x.shape).float()
        x.copy_(total)
        for one in self._gathered():
            self._send(one, x.contiguous().view(-1).view(torch.uint8).numpy().data)

    def gather(self, x):  # type: ignore
        if self.rank:
            self._send(self._zero, x.contiguous().view(-1).view(torch.uint8).numpy().data)
            return None
        parts = [x]
        for one in self._gathered():
            got = self._receive(one, self._timeout)
            parts.append(torch.frombuffer(bytearray(got), dtype=x.dtype).view(x.shape))
        return torch.stack(parts)

    def tell(self, message: bytes) -> None:
        for one in self._gathered():
            self._send(one, message)

    def hear(self, timeout=None):  # type: ignore
        return self._receive(self._zero, timeout)

    def answer(self, message: bytes) -> None:
        self._send(self._zero, message)

    def answers(self, timeout: float):  # type: ignore
        found = []
        for rank, one in enumerate(self._gathered()):
            found.append(self._receive(one, timeout))
            if found[-1] is None:
                raise RankError(f"rank {rank + 1} has not answered")
        return found

    def abort(self, reason: str) -> None:
        self._reason = reason
        for one in [self._zero, *self._others.values()]:
            with contextlib.suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
