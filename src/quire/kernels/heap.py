"""Memory that this process has been given and does not use now: kept, or given back."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt, in glibc's malloc.h
_LARGEST_KEPT = 32 << 20  # the most that glibc takes for one piece
_MOST_KEPT = 128 << 20


def keep_what_steps_take() -> None:
    """Keep memory that each step takes and frees again, such as for logits.

    glibc alone returns large pieces at once, and the system clears them for the next step, which
    took up to two fifths of the time of sampling.

    All threads share one arena from now on: ``give_memory_back`` cannot return free memory in the
    middle of other arenas, and each arena would keep as much at its end.
    """
    setting = _function("mallopt")
    if setting is not None:
        setting(_ARENA_MAX, 1)
        setting(_MMAP_THRESHOLD, _LARGEST_KEPT)
        setting(_TRIM_THRESHOLD, _MOST_KEPT)


def give_memory_back() -> None:
    """Return to the system what is free. glibc by itself keeps what many small pieces had."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """One of glibc's; None where the C library is another."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
