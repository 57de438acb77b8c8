"""When garbage is looked for among all that lives, which holds Python's lock: while that is little.

A thousand requests that wait are some 200,000 objects, and looking through them takes 100 ms, in
which nobody else is heard. Most garbage needs no look; what is young is looked through as ever.
"""

from __future__ import annotations

import gc

_SELDOM = 1_000  # looks at what is not so young, until all is looked through in any case
_DUE = 10  # such looks: Python's own measure
_FEW = 64  # requests that wait, sequences that run, connections, and tasks that answer


def keep_what_is_loaded() -> None:
    """It stays: to look through it, all would pause for 200 ms."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


def collect(living: int) -> None:
    """Look through all, if that is due and so many that wait, run or are connected are few.

    Where what is loaded has not been kept apart, Python does it when it likes.
    """
    kept_apart = gc.get_threshold()[2] >= _SELDOM
    if kept_apart and living <= _FEW and gc.get_count()[2] >= _DUE:
        gc.collect()
