"""Ends the process when its time is over, whatever hangs in it.

A thread may wait for ever, or a native call hold Python's lock, so that no signal is heard. So a
process that does nothing but wait, and needs no Quire, gets signals from the system itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import time

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEGUN = b"\0"  # beside the numbers of signals
_HASTE = 5.0  # seconds after a second signal
_LATER = 1.0  # seconds after the process should have ended itself, and said where it hung
_LOOK = 1.0  # seconds between two looks whether it is there still


class LastResort:
    """From the first signal that ends the process, it has ``seconds``; from a second one 5.

    After that its threads' stacks are written to stderr, and it is gone. Of the main thread.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = False
        read, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds)],
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
        faulthandler.dump_traceback_later(_HASTE if self._begun else self._seconds, exit=True)
        self._begun = True
        with contextlib.suppress(OSError):  # as many signals wait as it holds
            os.write(self._told, _BEGUN)

    def close(self) -> None:
        """Nobody is ended any more."""
        faulthandler.cancel_dump_traceback_later()
        signal.set_wakeup_fd(-1)
        os.close(self._told)
        self._process.wait()


def _watch(process: int, seconds: float) -> None:
    """Until the process is gone, or has to be."""
    deadline = math.inf
    while os.getppid() == process:
        if select.select([0], [], [], _LOOK)[0]:
            signals = os.read(0, 64)
            if not signals:
                return
            for number in signals:
                if deadline == math.inf and number in (*_ENDING, *_BEGUN):
                    deadline = time.monotonic() + seconds + _LATER
                elif number in _ENDING:  # again
                    deadline = min(deadline, time.monotonic() + _HASTE + _LATER)
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            sys.stderr.write("quire: something hung, so that the process was killed\n")
            return


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))
