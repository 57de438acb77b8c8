"""A rank that adds, or hears, without an end; it needs no torch, so it starts fast."""

from __future__ import annotations

import os
import sys

import numpy

from quire.core.errors import RankError
from quire.kernels import _native


def main(name: str, rank: int, size: int, timeout: float, what: str) -> None:
    """Be there, tell so, go on until it fails, and tell why."""
    if rank == 0:
        file = os.memfd_create("quire-ranks")
        os.ftruncate(file, _native.Ranks.memory_bytes(size))
        name = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file = os.open(name, os.O_RDWR)
    ranks = _native.Ranks(file, rank, size, timeout, "")
    print(name, flush=True)
    sys.stdin.readline()  # until all are there
    x = numpy.ones(700_000, numpy.float32)  # in several pieces
    try:
        while True:
            if what == "add":
                ranks.add_up(x.ctypes.data, x.size, 0, 1)
            elif rank:
                ranks.hear(60.0)
            else:
                ranks.answers(60.0)
    except RankError as error:
        print(error)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]), sys.argv[5])
