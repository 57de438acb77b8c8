"""What engines of one machine were promised, and have not taken yet."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from quire.execution import promises as module
from quire.execution.free_memory import free_memory
from quire.execution.promises import Claim, promises

MIB = 2**20
FREE = 1000 * MIB  # of a machine on which nobody takes what it was promised

_ENGINE = """
import sys, types
import psutil
from quire.core.errors import ModelError
from quire.execution import promises
from pathlib import Path
promises._MEMORY = Path(sys.argv[1])
from quire.execution.device_runtime import OnCPU
from quire.kernels.instructions import choose_instructions
free = types.SimpleNamespace(total=2**31, available=1000 * 2**20)
psutil.virtual_memory = lambda: free
runtime = OnCPU(None, choose_instructions("auto"))
print("ready", flush=True)
sys.stdin.readline()
try:
    runtime.admit(600 * 2**20)
    print("admitted", flush=True)
except ModelError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulates the machine; the directory is that of this user's engines."""
    memory = SimpleNamespace(total=2 * FREE, available=FREE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(module, "_MEMORY", tmp_path)
    return tmp_path / f"quire-{os.getuid()}"


@contextmanager
def engine(memory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _ENGINE, str(memory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_two_that_start_together_one_is_refused(tmp_path: Path, directory: Path) -> None:
    """Each alone fits. Neither has taken anything when the other measures."""
    with engine(tmp_path) as first, engine(tmp_path) as second:
        assert hear(first) == hear(second) == "ready"
        say(first)
        say(second)
        answers = sorted([hear(first), hear(second)])
        assert answers[0] == "admitted"
        assert "loading the model takes 629,145,600 bytes" in answers[1]
        assert 400 * MIB <= int(answers[1].split("only ")[1].split()[0].replace(",", "")) < FREE
        assert free_memory() <= 401 * MIB, "this process knows of them as well"
    assert free_memory() == FREE, "what was promised to the dead is free"


def test_what_has_been_taken_is_not_promised_any_more(directory: Path) -> None:
    claim = Claim()
    with claim.settling():
        claim.promise(500 * MIB)
    before = free_memory()
    assert before <= 501 * MIB
    taken = bytearray(b"x" * (200 * MIB))
    assert 150 * MIB <= free_memory() - before <= 250 * MIB  # the machine is simulated
    del taken
    claim.give_up()
    assert free_memory() == FREE and not promises()


def test_who_measures_counts_engines_of_its_own_process_but_not_itself(directory: Path) -> None:
    first, second = Claim(), Claim()
    with first.settling():
        first.promise(300 * MIB)
    with second.settling():
        assert free_memory() <= 701 * MIB
        second.promise(200 * MIB)
    assert free_memory() <= 501 * MIB
    with second.settling():
        assert 600 * MIB <= free_memory() <= 701 * MIB
    second.give_up()
    first.give_up()
    assert free_memory() == FREE


def test_engines_that_follow_one_another_inherit_nothing(directory: Path) -> None:
    """Each is there before the last has gone, as where a name is bound anew."""
    last, taken = Claim(), b""
    with last.settling():
        last.promise(200 * MIB)
    for _ in range(6):
        claim = Claim()
        with claim.settling():
            claim.promise(200 * MIB)
        assert free_memory() <= FREE - 300 * MIB, "both live"
        last.give_up()
        taken = b"x" * (50 * MIB) if not taken else b""
        last = claim
        assert FREE - 201 * MIB <= free_memory() <= FREE - 100 * MIB
    last.give_up()
    assert free_memory() == FREE


def test_in_a_group_those_count_that_are_in_it(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text("0::/pod/box\n")
    for name, size in ("pod/box", 800 * MIB), ("pod", 900 * MIB):
        path = tmp_path / "fs/cgroup" / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "memory.max").write_text(str(size))
        (path / "memory.current").write_text("0")
    groups = [tmp_path / "fs/cgroup/pod/other", tmp_path / "fs/cgroup/pod"]
    monkeypatch.setattr(module, "directories", lambda *_: groups)
    claim = Claim()
    with claim.settling():
        claim.promise(50 * MIB)
    assert free_memory(tmp_path, tmp_path) == 800 * MIB
    claim.promise(300 * MIB)
    assert 599 * MIB <= free_memory(tmp_path, tmp_path) <= 601 * MIB  # of the group above
    claim.give_up()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_the_dead_leave_behind_is_removed(
    tmp_path: Path, directory: Path, number: signal.Signals
) -> None:
    with engine(tmp_path) as process:
        assert hear(process) == "ready"
        say(process)
        assert hear(process) == "admitted"
        assert len(list(directory.glob("*.promise"))) == 1
        process.send_signal(number)
        process.wait(20)
        claim = Claim()
        with claim.settling():
            assert free_memory() == FREE
        assert len(list(directory.glob("*.promise"))) == 1, "its own"
        claim.give_up()


def test_a_process_that_cannot_be_seen_has_taken_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another container that shares the directory: its number is somebody else's here."""
    claim = Claim()
    with claim.settling():
        claim.promise(300 * MIB)
    taken = bytearray(b"x" * (100 * MIB))
    monkeypatch.setattr(module, "_namespace", lambda: 5)
    assert free_memory() == 700 * MIB
    del taken
    claim.give_up()


@pytest.mark.parametrize("mode", [0o500, 0o777])
def test_a_directory_that_is_no_good_is_told(
    directory: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """0o777: anybody could write there what this user's engines believe."""
    if mode == 0o500 and not os.getuid():
        pytest.skip("root may write everywhere")
    directory.mkdir()
    directory.chmod(mode)
    claim = Claim()
    with caplog.at_level(logging.WARNING), claim.settling():
        claim.promise(300 * MIB)
    assert not claim.is_told and free_memory() == FREE
    assert "do not start several at the same time" in caplog.text


def test_a_directory_that_is_full_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    claim = Claim()
    with caplog.at_level(logging.WARNING), claim.settling():
        claim.promise(300 * MIB)
    assert not claim.is_told and not promises()
    assert "No space left" in caplog.text
