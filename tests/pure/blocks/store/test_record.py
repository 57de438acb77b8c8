"""A record is what was written for this very block, to the last bit, or it is an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.blocks.store import RecordForm, RecordShelf
from quire.blocks.store.directory import RecordDirectory
from quire.blocks.store.segment import header_bytes, names_in
from quire.core.memory import Content
from support.stored_blocks import BLOCK_SIZE, FORM, PARTS, content, files, parts, read

ROOMY = 1 << 30


@pytest.fixture
def stored(tmp_path: Path) -> RecordDirectory:
    directory = RecordDirectory(tmp_path, ROOMY, FORM)
    for number in range(3):
        directory.write([(content(number), parts(number))])
    return directory


def test_what_is_read_is_what_was_written(stored: RecordDirectory) -> None:
    for number in range(3):
        assert stored.has(content(number).name)
        assert read(stored, number) == parts(number)
    assert not stored.has(content(3).name)
    with pytest.raises(FileNotFoundError):
        read(stored, 3)


def test_the_format_is_the_documented_one() -> None:
    one, (first, second) = content(5), parts(5)
    head = FORM.head(one, [first, second])
    assert len(head) == FORM.head_bytes
    assert head[:24] == b"QUIREKV1" + FORM.fingerprint
    assert head[24:40] == one.name
    assert head[40:60] == b"".join(n.to_bytes(4, "little") for n in (4, 5, 1, 2, 3))
    assert head[60:72] == (2).to_bytes(4, "little") + PARTS[0].to_bytes(8, "little")
    assert FORM.num_bytes == len(head) + sum(PARTS)


def flipped(record: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(record))
    return record[:place] + bytes([record[place] ^ 1 << rng.randrange(8)]) + record[place + 1 :]


def in_the_head(record: bytes, rng: random.Random) -> bytes:
    return flipped(record[: FORM.head_bytes], rng) + record[FORM.head_bytes :]


def cut(record: bytes, rng: random.Random) -> bytes:
    return record[: rng.randrange(len(record))]


def zeros(record: bytes, rng: random.Random) -> bytes:
    """As after a loss of power."""
    place = rng.randrange(len(record))
    return record[:place] + bytes(len(record) - place)


@pytest.mark.parametrize("damage", [flipped, in_the_head, cut, zeros])
def test_what_is_damaged_is_never_given(
    stored: RecordDirectory, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """In one of its parts at least; and the file is gone, so that it can be written again."""
    rng = random.Random(0)
    (path,) = (file for file in files(tmp_path) if names_in(str(file)) == [content(1).name])
    before, whole = path.read_bytes()[: header_bytes(1)], path.read_bytes()[header_bytes(1) :]
    for _ in range(100):
        damaged = damage(whole, rng)
        if damaged == whole:
            continue
        path.write_bytes(before + damaged)
        again = RecordDirectory(tmp_path, ROOMY, FORM)
        assert again.has(content(1).name)
        with pytest.raises(OSError, match="record"):
            read(again, 1)
        assert not again.has(content(1).name) and not path.exists()
    stored.count()
    stored.write([(content(1), parts(1))])
    assert read(stored, 1) == parts(1)
    assert read(stored, 2) == parts(2)


@pytest.mark.parametrize(
    ("form", "asked"),
    [
        (FORM, Content(content(1).name, (1, 1, 2, 4))),  # other tokens under the same name
        (RecordForm(b"of another model", BLOCK_SIZE, PARTS), content(1)),
        (RecordForm(FORM.fingerprint, BLOCK_SIZE, (PARTS[0], PARTS[1] - 1)), content(1)),
        (RecordForm(FORM.fingerprint, BLOCK_SIZE, PARTS[:1]), content(1)),
        (FORM, content(2)),
    ],
)
def test_what_belongs_to_something_else_is_not_taken(form: RecordForm, asked: Content) -> None:
    """Wherever it lies: what a peer has sent is checked alike."""
    record = b"".join([FORM.head(content(1), parts(1)), *parts(1)])
    shelf = RecordShelf(form, ROOMY)
    shelf.put(asked.name, record)
    assert shelf.has(asked.name)
    with pytest.raises(OSError, match="record"):
        shelf.read(asked, 0, [memoryview(bytearray(form.part_bytes[0]))])
    assert not shelf.has(asked.name)


def test_a_shelf_gives_up_what_has_not_been_used_for_longest() -> None:
    shelf = RecordShelf(FORM, 3 * FORM.num_bytes)
    for number in range(3):
        shelf.write(content(number), parts(number))
    into = bytearray(PARTS[1])
    shelf.read(content(0), 1, [memoryview(into)])
    assert bytes(into) == parts(0)[1]
    shelf.write(content(3), parts(3))
    assert [shelf.has(content(number).name) for number in range(4)] == [True, False, True, True]
