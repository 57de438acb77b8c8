"""What makes room beyond the pool: the ends of texts, and what no request goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from quire.blocks.store import DiskStore, RecordShelf, Tiers
from support.stored_blocks import FORM, content, parts

MOST = 160  # blocks that a store holds
SYSTEM = range(32)  # what every request begins with


def request(number: int) -> list[int]:
    return [*SYSTEM, *range(1000 * number, 1000 * number + 20)]


def serve(store: DiskStore | Tiers, texts: Iterable[list[int]], *, step: int = 8) -> None:
    """As a scheduler does: it says what is in use, and has stored what a step has filled."""
    for text in texts:
        for start in range(0, len(text), step):
            store.used([content(number).name for number in reversed(text[: start + step])])
            for number in text[start : start + step]:
                if not store.has(content(number).name):
                    assert store.room() > 0
                    store.write(content(number), parts(number))
        if isinstance(store, DiskStore):
            store.flush()


def leading(store: DiskStore | Tiers, text: list[int]) -> int:
    found = 0
    while found < len(text) and store.has(content(text[found]).name):
        found += 1
    return found


def bytes_for(blocks: int) -> int:
    """On a disk, with what files take beside their blocks."""
    return blocks * (FORM.num_bytes + 600)


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskStore | Tiers]:
    if request.param == "memory":
        yield Tiers(RecordShelf(FORM, MOST * FORM.num_bytes), None)
        return
    disk = DiskStore(tmp_path, bytes_for(MOST), FORM)
    yield disk
    disk.close()


def test_what_every_request_begins_with_stays(store: DiskStore | Tiers, tmp_path: Path) -> None:
    """It is found in the pool, and never read again."""
    serve(store, map(request, range(1, 15)))  # twice what the store holds
    assert leading(store, request(14)) == len(request(14))
    assert 32 <= leading(store, request(1)) < 40, "others have made room, by files of 8 blocks"
    if isinstance(store, DiskStore):
        store.close()
        again = DiskStore(tmp_path, bytes_for(MOST), FORM)
        assert leading(again, request(99)) == len(SYSTEM) == 32
        again.close()


def test_a_text_longer_than_the_store_is_found_from_its_beginning(
    store: DiskStore | Tiers,
) -> None:
    text = list(range(3 * MOST))
    serve(store, [text], step=16)
    assert leading(store, text) >= 0.85 * MOST


def test_ten_times_what_it_holds(store: DiskStore | Tiers) -> None:
    """Whoever is used keeps its beginning, whatever else comes by."""
    serve(store, (each for n in range(1, 80) for each in (request(n), request(500))))
    assert leading(store, request(500)) == len(request(500))


def test_use_is_noted_where_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.blocks.store.writer._USE_NOTED_AFTER", 0.0)
    store = DiskStore(tmp_path, bytes_for(64), FORM)
    old, new = list(range(16)), list(range(100, 116))
    serve(store, [old, new])
    store.used([content(number).name for number in reversed(old)])  # in the pool
    store.flush()
    serve(store, [list(range(200, 224))])
    assert leading(store, new) < leading(store, old) == 16
    store.close()
