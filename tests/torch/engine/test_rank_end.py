"""What a rank does when it is told to end, by the code that hears it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from quire.blocks.store import DiskStore
from quire.blocks.store.segment import names_in
from quire.engine.assembly.ranks import follower
from quire.engine.assembly.ranks.messages import End
from quire.kernels.transport import Connection
from support.stored_blocks import FORM, content, files, parts


def test_who_is_told_to_end_writes_what_waits_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int, int]] = []

    def end(status: int) -> None:
        count = sum(len(names_in(str(path))) for path in files(tmp_path))
        ended.append((status, count))

    monkeypatch.setattr(follower.os, "_exit", end)
    store = DiskStore(tmp_path, 1 << 20, FORM)
    with store._directory._ledger.locked():  # by another engine, so that nothing is written yet
        for number in range(3):
            store.write(content(number), parts(number))
    rank = object.__new__(follower._Rank)
    ours, theirs = map(Connection, socket.socketpair())
    rank._rank_0, rank._store = theirs, store
    rank._with_rank_0, rank._told_to_end = True, threading.Event()
    ours.send(End())
    rank._hear()
    store.close()
    ours.close()
    theirs.close()
    assert ended == [(0, 3)]
    assert rank._told_to_end.is_set()
