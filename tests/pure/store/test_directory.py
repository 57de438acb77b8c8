"""Records in files: bounded, shared, and whole whenever a process ends."""

from __future__ import annotations

import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.errors import ConfigError
from quire.store import DiskStore, RecordForm, check_writable
from quire.store.directory import RecordDirectory
from support.stored_blocks import FORM, PARTS, TAKEN, content, files, parts, read

NUMBERS = st.integers(0, 4)
ENGINES = st.integers(0, 1)
TESTS = Path(__file__).parents[2]


class Directories(RuleBasedStateMachine):
    """Two engines over one directory, beside a list in the order of use."""

    @initialize(most=st.integers(2, 4))
    def begin(self, most: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="quire-store-"))
        self.most = most
        self.engines = [self.opened(), self.opened()]
        self.kept: list[int] = []  # longest unused first

    def opened(self) -> RecordDirectory:
        return RecordDirectory(self.path, self.most * TAKEN, FORM)

    @rule(engine=ENGINES, number=NUMBERS)
    def write(self, engine: int, number: int) -> None:
        self.engines[engine].write(content(number), parts(number))
        if number not in self.kept:
            if len(self.kept) == self.most:
                del self.kept[0]
            self.kept.append(number)

    @rule(engine=ENGINES, number=NUMBERS)
    def read(self, engine: int, number: int) -> None:
        if number in self.kept:
            assert read(self.engines[engine], number) == parts(number)
            self.kept.remove(number)
            self.kept.append(number)

    @rule(engine=ENGINES)
    def open_again(self, engine: int) -> None:
        self.engines[engine] = self.opened()
        self.engines[engine].count()

    @rule(number=NUMBERS)
    def lose(self, number: int) -> None:
        """Somebody removes a file, whatever the ledger says, and the next count finds out."""
        if number in self.kept:
            (path,) = (file for file in files(self.path) if content(number).name.hex() in file.name)
            path.unlink()
            self.kept.remove(number)
            self.engines[0].count()

    @rule(number=NUMBERS)
    def write_for_another_model(self, number: int) -> None:
        """It counts, and is found by nobody else. It is read at once, and given up first."""
        other = RecordDirectory(self.path, self.most * TAKEN, RecordForm(b"x" * 16, 4, PARTS))
        if len(self.kept) < self.most:
            other.write(content(number), parts(number))
            other.remove(content(number).name)

    @invariant()
    def both_have_what_is_kept(self) -> None:
        for engine in self.engines:
            has = {number for number in range(5) if engine.has(content(number).name)}
            assert has == set(self.kept)
            assert engine.num_bytes == len(self.kept) * TAKEN <= self.most * TAKEN

    def teardown(self) -> None:
        shutil.rmtree(self.path)


TestDirectories = Directories.TestCase
TestDirectories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_killed_at_any_moment_it_keeps_whole_records_within_its_bound(tmp_path: Path) -> None:
    """Two writers that share all they write, one of them killed, then the other."""
    rng, most = random.Random(0), 20
    command = [sys.executable, "-m", "support.stored_blocks", tmp_path, most * TAKEN, 0, 40]
    for _ in range(4):
        with ExitStack() as running:
            writers = [
                running.enter_context(
                    subprocess.Popen(list(map(str, command)), cwd=TESTS, stdout=subprocess.PIPE)
                )
                for _ in range(2)
            ]
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"begun\n"
            for writer in writers:
                time.sleep(rng.uniform(0.0, 0.1))
                assert writer.poll() is None, "no reader met anything but whole records"
                writer.send_signal(signal.SIGKILL)
        directory = RecordDirectory(tmp_path, most * TAKEN, FORM)
        kept = [number for number in range(40) if directory.has(content(number).name)]
        assert 0 < len(kept) <= most
        assert all(read(directory, number) == parts(number) for number in kept)
        assert directory.num_bytes >= len(kept) * TAKEN, "never too small"
        directory.count()
        assert directory.num_bytes == len(kept) * TAKEN == sum(TAKEN for _ in files(tmp_path))


def test_what_is_being_written_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, write = RecordDirectory(tmp_path, 9 * TAKEN, FORM), os.writev
    seen: list[bool] = []

    def watched(file: int, pieces: list[bytes]) -> int:
        seen.append(directory.has(content(1).name))
        done = write(file, pieces)
        seen.append(directory.has(content(1).name))
        return done

    monkeypatch.setattr(os, "writev", watched)
    directory.write(content(1), parts(1))
    assert seen == [False, False]
    assert directory.has(content(1).name)


def test_what_is_given_up_while_it_is_read_is_read(tmp_path: Path) -> None:
    directory = RecordDirectory(tmp_path, 100 * TAKEN, FORM)
    directory.write(content(1), parts(1))
    (path,) = files(tmp_path)
    file = os.open(path, os.O_RDONLY)
    RecordDirectory(tmp_path, 4 * TAKEN, FORM).remove(content(1).name)
    into = bytearray(PARTS[0])
    buffers = [memoryview(into)]
    FORM.read(content(1), 0, buffers, lambda some, at: os.preadv(file, some, at))
    os.close(file)
    assert bytes(into) == parts(1)[0]


def test_other_files_of_the_directory_are_left_alone(tmp_path: Path) -> None:
    names = ("letters/ab/dear.txt", f"{'a' * 32}/notes", "x")
    mine = [tmp_path / name for name in names]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    directory = RecordDirectory(tmp_path, 2 * TAKEN, FORM)
    for number in range(9):
        directory.write(content(number), parts(number))
    assert directory.counts.evicted_blocks == 7
    assert [path.read_text() for path in mine] == ["mine"] * 3
    unfinished = Path(directory._file(content(1).name) + ".new")
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_text("of one that was killed")
    directory.count()
    assert not unfinished.exists()


def test_a_full_disk_ends_the_writing_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(tmp_path, 1 << 20, FORM)
    store.write(content(1), parts(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wait_until(lambda: len(files(tmp_path)) == 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FORM.num_bytes - 1, hard))
    try:
        store.write(content(2), parts(2))
        wait_until(lambda: store.quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.room() == 0
    store.write(content(3), parts(3))  # to no avail
    assert [store.has(content(number).name) for number in (1, 2, 3)] == [True, False, False]
    into = bytearray(PARTS[0])
    store.read(content(1), 0, [memoryview(into)])
    assert bytes(into) == parts(1)[0]
    (record,) = (r for r in caplog.records if r.levelno == logging.WARNING)
    assert "nothing more is stored" in record.getMessage()
    store.close()
    assert len(files(tmp_path)) == 1, "nothing unfinished is left"


def test_what_is_not_written_yet_can_be_fetched_and_is_bounded(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 1 << 20, FORM)
    store._writer._most = 3
    with RecordDirectory(tmp_path, 1 << 20, FORM)._ledger.locked():  # by another engine
        for number in range(5):
            store.write(content(number), parts(number))
        assert [store.has(content(number).name) for number in range(5)] == [True] * 3 + [False] * 2
        assert store.room() == 0
        time.sleep(0.05)
        assert not files(tmp_path)
        into = bytearray(PARTS[1])
        store.read(content(2), 1, [memoryview(into)])
        assert bytes(into) == parts(2)[1]
    store.close()
    assert len(files(tmp_path)) == 3


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_directory_that_cannot_hold_blocks_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below", Path("/proc/quire")):
        with pytest.raises(ConfigError, match=f"kv_store: {path} cannot hold blocks"):
            check_writable(path)
    with pytest.raises(ConfigError, match="kv_store_size: 9,000 bytes hold less than"):
        DiskStore(tmp_path, 9000, FORM)
