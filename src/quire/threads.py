"""How the threads of matrix products wait for each other."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Let idle threads sleep, unless the user has decided otherwise.

    OpenMP's threads spin while they wait. On cores that another process is using as well, each
    barrier then lasts until the system takes the core away from the spinning thread, and a step
    takes a hundred times as long. OpenMP reads this variable once, when torch loads it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
