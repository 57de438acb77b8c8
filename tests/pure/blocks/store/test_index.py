"""Where a process finds blocks of which there are several copies."""

from __future__ import annotations

from pathlib import Path

from quire.blocks.store.index import RecordPlace, SegmentIndex
from support.stored_blocks import content

OLDER, NEWER = (f"{number:032x}.blocks" for number in (1, 2))
A, B, C = (content(number).name for number in range(3))


def test_the_newer_copy_is_found_and_stays_when_the_older_one_is_gone(tmp_path: Path) -> None:
    index = SegmentIndex(tmp_path)
    assert index.find(A, state=0) is None
    index.add(OLDER, [A, B], before=0, after=1)
    index.add(NEWER, [C, A], before=1, after=2)
    newer = RecordPlace(NEWER, 2, 1)
    assert index.find(A, state=2) == newer
    index.forget(OLDER)
    assert (index.find(A, state=2), index.last_known(A)) == (newer, newer)
    assert index.find(B, state=2) is None
    assert index.find(C, state=2) == RecordPlace(NEWER, 2, 0)
    index.forget(NEWER)
    assert index.find(A, state=2) is None
