"""Ends the process when its time is over, whatever hangs in it.

A thread may wait for ever, or a native call hold Python's lock, so that no signal is heard. So a
process that does nothing but wait, and needs no Quire, gets signals from the system itself. It
sends others back, whose handlers are the C library's: they need no lock, and a process that is the
first of its container, which a SIGKILL from within does not reach, obeys them too.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

SLOWEST = 1.0  # seconds that all this takes at most, once the time is over

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEGUN = b"\0"  # beside the numbers of signals
_HASTE = 4.0  # seconds after a second signal
_LOOK = 1.0  # seconds between two looks whether it is there still
_STACKS = signal.SIGUSR1  # where its threads are goes to stderr
_EXIT = signal.SIGXCPU  # it exits, with the number of this signal as its status
_WRITTEN = 0.4  # seconds until its stacks are written, unless nobody reads them
_GONE = 0.2  # seconds until it is gone


class LastResort:
    """From the first signal that ends the process, it has ``seconds``; from a second one ``haste``.

    After that its threads' stacks are written to stderr, and it is gone, and the processes that it
    has started with it. Of the main thread.
    """

    def __init__(self, seconds: float, haste: float = _HASTE) -> None:
        faulthandler.register(_STACKS, file=sys.__stderr__ or 2)
        library = ctypes.CDLL(None)
        library.signal(int(_EXIT), ctypes.cast(library._exit, ctypes.c_void_p))
        read, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, (os.getpid(), seconds, haste))],
            stdin=read,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to a group or a terminal is not for it
        )
        os.close(read)

    def hear(self) -> None:
        """Have the system tell of each signal that Python handles, without Python.

        To be called again where another may have set it.
        """
        signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)

    def begin(self) -> None:
        """The end has begun, because of a signal that has been heard, or for another reason."""
        with contextlib.suppress(OSError):  # as many signals wait as it holds
            os.write(self._told, _BEGUN)

    def close(self) -> None:
        """Stop watching."""
        signal.set_wakeup_fd(-1)
        os.close(self._told)
        self._process.wait()
        faulthandler.unregister(_STACKS)
        signal.signal(_EXIT, signal.SIG_DFL)


def _watch(process: int, seconds: float, haste: float) -> None:
    """Wait until the process is gone, or its time is over."""
    deadline = math.inf
    while os.getppid() == process:
        left = deadline - time.monotonic()
        if left <= 0:
            _end(process)
            return
        if select.select([0], [], [], min(_LOOK, left))[0]:
            signals = os.read(0, 64)
            if not signals:
                return
            for number in signals:
                if deadline == math.inf and number in (*_ENDING, *_BEGUN):
                    deadline = time.monotonic() + seconds
                elif number in _ENDING:  # again
                    deadline = min(deadline, time.monotonic() + haste)


def _end(process: int) -> None:
    """End the process and those that it has started."""
    sys.stderr.write("quire: something hangs, and its time is over. The process is ended at:\n")
    sys.stderr.flush()
    started = [one for one in _started_by(process) if one != os.getpid()]
    _send(process, _STACKS, _WRITTEN)
    for one in started:  # while they are its children, no other process has their numbers
        _send(one, signal.SIGKILL, 0.0)
    _send(process, _EXIT, _GONE)
    if os.getppid() == process:
        _send(process, signal.SIGKILL, 0.0)


def _send(process: int, number: int, seconds: float) -> None:
    """Send a signal, and wait for its effect."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
        time.sleep(seconds)


def _started_by(process: int) -> list[int]:
    """All processes below this one, where the system tells."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                found += [child, *_started_by(child)]
    return found


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
