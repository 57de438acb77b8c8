"""``RankGroup`` for processes of one machine, over memory they share (csrc/ranks/ranks.cpp)."""

from __future__ import annotations

import os
import weakref

# First; see ``cpu``.
import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.kernels import _native
from quire.kernels.native import CODES

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PYTHON_LOOKS_EVERY = 1.0  # seconds, for signals such as Ctrl-C


class SharedMemoryRanks:
    """``RankGroup`` of one machine.

    Rank 0 ``create``s the memory, and sends its ``name`` to the processes that ``join``. The memory
    is an open file of these processes, so it is gone when they are, however they ended, and the
    limit of /dev/shm, which containers often have, does not apply.
    """

    def __init__(self, native: _native.Ranks, rank: int, size: int, name: str) -> None:
        self.native = native  # for decoders that run as one
        self.rank = rank
        self.size = size
        self.name = name

    @classmethod
    def create(cls, size: int, timeout: float, instruction_set: str = "") -> SharedMemoryRanks:
        """Rank 0 of ``size``. ``timeout``: seconds that a rank may let the others wait."""
        if not hasattr(os, "memfd_create"):
            raise ConfigError("several ranks on one machine need Linux")
        if not 1 <= size <= _native.Ranks.most:
            raise ConfigError(f"ranks must be from 1 to {_native.Ranks.most}, not {size}")
        file = os.memfd_create("quire-ranks")
        os.ftruncate(file, _native.Ranks.memory_bytes(size))
        native = _native.Ranks(file, 0, size, timeout, instruction_set)
        ranks = cls(native, 0, size, f"/proc/{os.getpid()}/fd/{file}")
        weakref.finalize(ranks, os.close, file)  # until then others can open it
        return ranks

    @classmethod
    def join(
        cls, name: str, rank: int, size: int, timeout: float, instruction_set: str = ""
    ) -> SharedMemoryRanks:
        """One of those after rank 0."""
        try:
            file = os.open(name, os.O_RDWR)
        except OSError as error:
            raise ConfigError(f"the memory of rank 0 is not there: {error}") from None
        try:
            native = _native.Ranks(file, rank, size, timeout, instruction_set)
        except ValueError as error:
            raise ConfigError(f"rank {rank} of {size} cannot join {name}: {error}") from None
        finally:
            os.close(file)
        return cls(native, rank, size, name)

    def add_up(self, x: Tensor) -> None:
        """See ``Ranks.add_up``. x is float32, bfloat16 or float16."""
        if x.dtype not in _DTYPES or x.device.type != "cpu":
            raise TypeError(f"ranks add up no {x.dtype} on {x.device}")
        whole = x.contiguous()
        threads = torch.get_num_threads()
        self.native.add_up(whole.data_ptr(), whole.numel(), CODES[x.dtype], threads)
        if whole is not x:
            x.copy_(whole)

    def gather(self, x: Tensor) -> Tensor | None:
        x = x.contiguous()
        out = None if self.rank else x.new_empty((self.size, *x.shape))
        self.native.gather(x.data_ptr(), x.nbytes, 0 if out is None else out.data_ptr())
        return out

    def tell(self, message: bytes) -> None:
        self.native.tell(message)

    def hear(self, timeout: float | None = None) -> bytes | None:
        if timeout is not None:
            return self.native.hear(timeout)
        while (message := self.native.hear(_PYTHON_LOOKS_EVERY)) is None:
            pass
        return message

    def answer(self, message: bytes) -> None:
        self.native.answer(message)

    def answers(self, timeout: float) -> list[bytes]:
        return self.native.answers(timeout)

    def abort(self, reason: str) -> None:
        self.native.abort(reason)
