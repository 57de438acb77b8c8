"""Records in files: bounded, shared, and whole whenever a process ends."""

from __future__ import annotations

import errno
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

from quire.blocks.store import DiskStore, RecordForm, check_writable
from quire.blocks.store.directory import RecordDirectory
from quire.blocks.store.segment import header_bytes, names_in, reader_of
from quire.core.errors import ConfigError
from support.stored_blocks import FORM, PARTS, TAKEN, content, files, parts, read

NUMBERS = st.integers(0, 4)
ENGINES = st.integers(0, 1)
TESTS = Path(__file__).parents[3]


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
        self.engines[engine].write([(content(number), parts(number))])
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
            name = content(number).name
            (path,) = (file for file in files(self.path) if names_in(str(file)) == [name])
            path.unlink()
            self.kept.remove(number)
            self.engines[0].count()

    @rule(number=NUMBERS)
    def write_for_another_model(self, number: int) -> None:
        """It counts, and is found by nobody else. It is read at once, and given up first."""
        other = RecordDirectory(self.path, self.most * TAKEN, RecordForm(b"x" * 16, 4, PARTS))
        if len(self.kept) < self.most:
            other.write([(content(number), parts(number))])
            other.remove(content(number).name)

    @invariant()
    def both_have_what_is_kept(self) -> None:
        for engine in self.engines:
            has = {number for number in range(5) if engine.has(content(number).name)}
            assert has == set(self.kept)
            assert engine.num_bytes == len(self.kept) * TAKEN <= self.most * TAKEN

    def teardown(self) -> None:
        if hasattr(self, "path"):
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
    directory.write([(content(1), parts(1))])
    assert seen == [False] * 4
    assert directory.has(content(1).name)


def test_what_is_given_up_while_it_is_read_is_read(tmp_path: Path) -> None:
    directory = RecordDirectory(tmp_path, 100 * TAKEN, FORM)
    directory.write([(content(1), parts(1))])
    (path,) = files(tmp_path)
    file = os.open(path, os.O_RDONLY)
    RecordDirectory(tmp_path, 4 * TAKEN, FORM).remove(content(1).name)
    into = bytearray(PARTS[0])
    buffers = [memoryview(into)]
    FORM.read(content(1), 0, buffers, reader_of(file, header_bytes(1)))
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
        directory.write([(content(number), parts(number))])
    assert directory.counts.evicted_blocks == 7
    assert [path.read_text() for path in mine] == ["mine"] * 3
    unfinished = tmp_path / FORM.fingerprint.hex() / f"{'0' * 32}.blocks.new"
    unfinished.write_text("of one that was killed")
    directory.count()
    assert not unfinished.exists()


def test_a_disk_that_fails_ends_the_writing_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(tmp_path, 1 << 20, FORM)
    for number in range(30):
        store.write(content(number), parts(number))
        store.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FORM.num_bytes - 1, hard))
    try:
        store.write(content(30), parts(30))
        wait_until(lambda: store.quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.room() == 0
    store.write(content(31), parts(31))  # to no avail
    assert [store.has(content(number).name) for number in (29, 30, 31)] == [True, False, False]
    into = bytearray(PARTS[0])
    store.read(content(29), 0, [memoryview(into)])
    assert bytes(into) == parts(29)[0]
    (record,) = (r for r in caplog.records if r.levelno == logging.WARNING)
    assert "nothing more is stored" in record.getMessage()
    store.close()
    assert not list(tmp_path.rglob("*.new")), "nothing unfinished is left"


def test_a_disk_smaller_than_the_bound_is_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not been used for longest makes room there too."""
    write, most = os.writev, 5

    def on_a_small_disk(file: int, pieces: list[bytes]) -> int:
        if len(files(tmp_path)) > most:
            os.write(file, pieces[0])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, pieces)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:  # others' files fill it
        patched.setattr(tempfile, "TemporaryFile", no_room)
        with pytest.raises(ConfigError, match="No space left"):
            check_writable(tmp_path)
    monkeypatch.setattr(os, "writev", on_a_small_disk)
    directory = RecordDirectory(tmp_path, 20 * TAKEN, FORM)
    for number in range(12):
        directory.write([(content(number), parts(number))])
        assert directory.has(content(number).name)
        assert directory.num_bytes == TAKEN * len(files(tmp_path)) <= TAKEN * most
    assert read(directory, 11) == parts(11) and directory.counts.evicted_blocks >= 7
    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    check_writable(tmp_path)  # what is there will make room
    monkeypatch.setattr(os, "writev", no_room)
    total = directory.num_bytes
    with pytest.raises(OSError, match="No space left"):
        directory.write([(content(0), parts(0))])
    assert directory.num_bytes == TAKEN * len(files(tmp_path)) < total


def test_blocks_that_come_together_share_a_file(tmp_path: Path) -> None:
    """And are found, given up and replaced as it is, by whoever shares the directory."""
    store, other = DiskStore(tmp_path, 1 << 20, FORM), RecordDirectory(tmp_path, 1 << 20, FORM)
    assert not other.has(content(3).name)
    for number in range(12):
        store.write(content(number), parts(number))
    store.flush()
    (path,) = files(tmp_path)
    assert other.most == 12
    assert [read(other, number) for number in range(12)] == [parts(number) for number in range(12)]
    other.write([(content(number), parts(number)) for number in (3, 12, 4, 13)])
    (more,) = set(files(tmp_path)) - {path}
    assert names_in(str(more)) == [content(number).name for number in (12, 13)]
    damaged = bytearray(path.read_bytes())
    damaged[header_bytes(12) + 7 * FORM.num_bytes + 200] ^= 1
    path.write_bytes(damaged)
    assert read(other, 3) == parts(3), "the others are right still"
    with pytest.raises(OSError, match="damaged"):
        read(other, 7)
    assert [other.has(content(number).name) for number in (3, 7, 13)] == [False, False, True]
    with pytest.raises(FileNotFoundError):
        store.read(content(3), 0, [memoryview(bytearray(PARTS[0]))])
    assert not store.has(content(3).name)
    store.close()


def test_a_segment_whose_beginning_is_damaged_is_passed_over(tmp_path: Path) -> None:
    directory = RecordDirectory(tmp_path, 1 << 20, FORM)
    directory.write([(content(number), parts(number)) for number in (1, 2)])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    flipped = [
        whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        for place in range(header_bytes(2))
    ]
    for damaged in (b"", whole[:20], whole[:50], *flipped):
        path.write_bytes(damaged)
        assert not RecordDirectory(tmp_path, 1 << 20, FORM).has(content(1).name)


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
    (path,) = files(tmp_path)
    assert names_in(str(path)) == [content(number).name for number in range(3)]


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
