"""Blocks in main memory, within bounds, and on a disk behind it."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import pytest

from quire.blocks.store import DiskStore, RecordShelf, Tiers
from quire.core.memory import BlockSource
from support.stored_blocks import FORM, PARTS, content, parts

MOST = 7  # blocks in main memory


def read(source: BlockSource, number: int) -> list[bytes]:
    into = [bytearray(size) for size in PARTS]
    for kv_group, buffer in enumerate(into):
        source.read(content(number), kv_group, [memoryview(buffer)])
    return [bytes(buffer) for buffer in into]


def test_the_least_recently_used_go_first_and_what_comes_back_is_what_was_stored() -> None:
    tiers, rng = Tiers(RecordShelf(FORM, MOST * FORM.num_bytes + 1), None), random.Random(1)
    kept = OrderedDict[int, None]()
    for _ in range(2000):
        number, deed = rng.randrange(12), rng.choice("write find read")
        if deed == "w":
            tiers.write(content(number), parts(number))
            kept[number] = None
        elif deed == "f":
            tiers.used([content(number).name])
            tiers.used([])  # nothing is written that was not here
        elif number in kept:
            assert read(tiers, number) == parts(number)
        else:
            with pytest.raises(OSError, match="gone"):
                read(tiers, number)
        if number in kept:
            kept.move_to_end(number)
        if len(kept) > MOST:
            kept.popitem(last=False)
        assert [each for each in range(12) if tiers.has(content(each).name)] == sorted(kept)
        assert tiers.shelf.num_bytes == len(kept) * FORM.num_bytes <= tiers.shelf.size
    assert tiers.room() == MOST
    assert tiers.seconds_to_fetch() > 0
    assert len(kept) == MOST, "measuring leaves nothing behind"


def test_a_text_that_is_too_long_keeps_its_beginning() -> None:
    """Blocks come a few at a time, and each step says before how they follow one another."""
    shelf = RecordShelf(FORM, MOST * FORM.num_bytes)
    shelf.write(content(99), parts(99))  # another text, longest unused
    for end in range(3, 31, 3):
        shelf.used([content(number).name for number in reversed(range(end))])
        for number in range(end - 3, end):
            shelf.write(content(number), parts(number))
    assert [n for n in range(100) if shelf.has(content(n).name)] == list(range(MOST))
    shelf.used([])
    shelf.write(content(50), parts(50))  # another one takes the end's place
    assert [n for n in range(100) if shelf.has(content(n).name)] == [*range(MOST - 1), 50]


def test_a_disk_has_what_main_memory_has_lost(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, 1 << 24, FORM)
    tiers = Tiers(RecordShelf(FORM, MOST * FORM.num_bytes), disk)
    for number in range(MOST + 3):
        assert tiers.room() == disk.room() > 0
        tiers.write(content(number), parts(number))
    disk.flush()
    for number in range(MOST + 3):
        assert tiers.has(content(number).name)
        assert read(tiers, number) == parts(number)
    assert (tiers.num_read, disk.counts.read_blocks) == (MOST, 3 * len(PARTS))
    again = RecordShelf(FORM, MOST * FORM.num_bytes)  # as after a restart
    assert read(Tiers(again, disk), 9) == parts(9)
    tiers.close()
    assert (disk.room(), tiers.room()) == (0, 0)
