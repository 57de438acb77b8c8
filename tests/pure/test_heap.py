"""Memory that is free goes back to the system, whichever thread had it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import threading
from quire.kernels.heap import give_memory_back, keep_what_steps_take

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

def work():
    kept = []
    before = resident()
    pieces = [bytearray(10_000) for _ in range(5_000)]
    kept.append(resident() - before)
    del pieces
    give_memory_back()
    kept.append(resident() - before)
    print(*kept)

keep_what_steps_take()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps nothing")
def test_a_thread_keeps_nothing_of_what_it_had() -> None:
    program = [sys.executable, "-c", _PROGRAM]
    told = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout
    taken, left = map(int, told.split())
    assert taken > 40e6 and left < 5e6
