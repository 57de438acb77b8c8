"""Blocks of made-up bytes for stores: a block's number says all of it."""

from __future__ import annotations

import random
from pathlib import Path

from quire.blocks.store import RecordForm
from quire.blocks.store.directory import RecordDirectory
from quire.core.memory import Content, hash_blocks

BLOCK_SIZE = 4
PARTS = (3000, 1100)
FORM = RecordForm(b"all of the model", BLOCK_SIZE, PARTS)
TAKEN = 8192  # bytes on disk of a record


def content(number: int) -> Content:
    tokens = (number, 1, 2, 3)
    return Content(hash_blocks(b"", tokens, BLOCK_SIZE)[0], tokens)


def parts(number: int) -> list[bytes]:
    rng = random.Random(number)
    return [rng.randbytes(size) for size in PARTS]


def read(directory: RecordDirectory, number: int) -> list[bytes]:
    """All of a block, read in pieces as if into layers."""
    found = []
    for kv_group, size in enumerate(PARTS):
        buffer = bytearray(size)
        view = memoryview(buffer)
        directory.read(content(number), kv_group, [view[:100], view[100:700], view[700:]])
        found.append(bytes(buffer))
    return found


def files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file() and file.name != "ledger"]


def main(path: str, size: int, first: int, count: int) -> None:
    """Writes and reads blocks over and over, until it is killed."""
    directory = RecordDirectory(Path(path), size, FORM)
    print("begun", flush=True)
    rng = random.Random(first)
    while True:
        number = first + rng.randrange(count)
        if directory.has(content(number).name):
            try:
                assert read(directory, number) == parts(number), "a block of other bytes"
            except FileNotFoundError:
                continue  # the other one has given it up since
        else:
            directory.write([(content(number), parts(number))])


if __name__ == "__main__":
    import sys

    main(sys.argv[1], *map(int, sys.argv[2:]))
