"""Measures how long fetching a block takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from quire.blocks.store.record import DIGEST_BYTES, RecordForm
from quire.core.memory import Content

_REPEATS = 5

Read = Callable[[Content, int, Sequence[memoryview]], None]


def zeros(form: RecordForm) -> tuple[Content, list[bytes]]:
    """The record of a block that no text has, and its parts."""
    content = Content(os.urandom(DIGEST_BYTES), (0,) * form.block_size)
    return content, [bytes(size) for size in form.part_bytes]


def seconds_to_read(form: RecordForm, content: Content, read: Read) -> float:
    """The shortest time of several to read all parts of a block."""
    into, times = [memoryview(bytearray(size)) for size in form.part_bytes], []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for kv_group, buffer in enumerate(into):
            read(content, kv_group, [buffer])
        times.append(time.perf_counter() - start)
    return min(times)
