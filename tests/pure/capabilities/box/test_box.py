"""Whatever happens in a worker costs one call, and nothing of a box outlives its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from quire.capabilities.box import Box, BoxBroken
from quire.core.errors import EngineError, RequestError
from support.boxed import stop

MEMORY = 256 << 20


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    box = Box("support.boxed:Service", "hello", memory=MEMORY, shared=4096)
    yield box
    box.close()


def say(box: Box, seconds: float = 30) -> str:
    return box.call("say", " there", seconds=seconds, gives=str)


def test_a_call_gives_what_the_method_gives(box: Box) -> None:
    assert say(box) == "hello there"
    assert box.call("give", 10_000_000, seconds=30, gives=bytes) == bytes(10_000_000)


def test_a_refusal_comes_as_it_was_raised(box: Box) -> None:
    process = box.call("process", seconds=30, gives=int)
    with pytest.raises(RequestError, match="it is not to be had") as raised:
        box.call("refuse", seconds=30, gives=str)
    assert raised.value.field == "prompt"
    assert box.call("process", seconds=30, gives=int) == process  # which costs no worker


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("fail", (), "KeyError: 'oh'"),
        ("crash", (), "SIGSEGV"),
        ("take", (4 << 30,), "too much memory"),
        ("loop", (), r"more than 0\.2 s|within 0\.8 s"),
    ],
)
def test_what_goes_wrong_is_named_and_the_next_call_has_a_new_worker(
    box: Box, method: str, arguments: tuple[object, ...], why: str
) -> None:
    process = box.call("process", seconds=30, gives=int)
    with pytest.raises(BoxBroken, match=why):
        box.call(method, *arguments, seconds=0.2 if method == "loop" else 30, gives=int)
    started = time.monotonic()
    assert box.call("process", seconds=30, gives=int) != process
    assert time.monotonic() - started < 2  # it takes milliseconds
    assert not psutil.pid_exists(process)


def test_who_is_kept_from_computing_has_not_taken_long(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, held_up = box.worker(), "quire.capabilities.box.box._HELD_UP"
    monkeypatch.setattr(held_up, 1_000)
    stop(worker.process)
    timer = threading.Timer(0.3, os.kill, (worker.process, signal.SIGCONT))
    timer.start()
    assert worker.call("process", seconds=0.1, gives=int) == worker.process
    timer.join()
    stop(worker.process)
    monkeypatch.setattr(held_up, 2)
    with pytest.raises(BoxBroken, match=r"not come to an end within 0\.4 s"):
        worker.call("process", seconds=0.2, gives=int)
    assert not psutil.pid_exists(worker.process)


def test_an_answer_of_another_type_ends_the_worker(box: Box) -> None:
    with pytest.raises(BoxBroken):
        box.call("process", seconds=30, gives=str)
    assert say(box) == "hello there"


def test_workers_share_memory_with_the_server_alone(box: Box) -> None:
    one, other = box.worker(), box.worker()
    for worker, text in ((one, b"one"), (other, b"two")):
        worker.call("write", text, seconds=30, gives=type(None))
    assert (one.shared[:3], other.shared[:3]) == (b"one", b"two")
    one.end()
    other.end()


def test_a_call_can_be_begun_and_waited_for_later(box: Box) -> None:
    worker = box.worker()
    worker.send("sleep", 0.2)
    with pytest.raises(TimeoutError):
        worker.receive(0.0, int)
    assert worker.receive(30, int) == worker.process
    worker.end()


def test_a_call_does_not_wait_for_a_long_one(box: Box) -> None:
    threads = [
        threading.Thread(target=box.call, args=("sleep", 3), kwargs={"seconds": 30, "gives": int})
    ]
    threads[0].start()
    started = time.monotonic()
    say(box)
    assert time.monotonic() - started < 2
    threads[0].join()


def test_long_calls_wait_for_each_other_and_keep_no_short_one_waiting(box: Box) -> None:
    """In more threads than there are turns: four that take long held all of them."""
    gave: list[int] = []
    threads = [
        threading.Thread(target=lambda: gave.append(box.call("sleep", 1.0, seconds=30, gives=int)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while not gave and box._long_turns.acquire(blocking=False):  # until none is left
        box._long_turns.release()
    say(box)
    assert len(gave) < 4, "it has waited for all of them"
    for thread in threads:
        thread.join()
    assert len(set(gave)) == 4, "each has a worker of its own, which is ended"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_call_leaves_the_cores_to_others_and_no_further_one_does(box: Box) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    worker = box.worker()
    assert os.getsid(worker.process) == os.getsid(0), "nice counts among those of a session alone"
    assert os.getpgid(worker.process) != os.getpgid(0), "Ctrl-C is the server's"
    worker.send("sleep", 0.2)
    assert worker.receive(30, int) and nice_of(worker.process) == {own}
    worker.call("sleep", 0.3, seconds=30, gives=int)
    assert nice_of(worker.process) == {max(own, 10)}
    worker.end()
    nicer = box.worker()  # as where the server is
    os.setpriority(os.PRIO_PROCESS, nicer.process, 17)
    nicer.call("sleep", 0.3, seconds=30, gives=int)
    assert 17 in nice_of(nicer.process)
    nicer.end()
    slow = box.call("sleep", 0.3, seconds=30, gives=int)
    assert box.call("process", seconds=30, gives=int) != slow and not psutil.pid_exists(slow)
    further = box.worker()
    assert nice_of(further.process) == {own}
    further.end()


def nice_of(process: int) -> set[int]:
    """Of its threads."""
    threads = [int(one.name) for one in Path(f"/proc/{process}/task").iterdir()]
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_has_no_file_of_the_server_and_leaves_no_core(box: Box, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w"):
        worker = box.worker()
        files = worker.call("files", seconds=30, gives=list[str])
        assert worker.call("cores", seconds=30, gives=int) == 0
        worker.end()
    assert len([file for file in files if file.startswith("socket:")]) == 1
    assert not any("secret" in file for file in files)


def test_a_worker_and_a_zygote_that_others_kill_are_replaced(box: Box) -> None:
    worker = psutil.Process(box.call("process", seconds=30, gives=int))
    zygote = worker.parent()
    assert zygote is not None
    for process in (worker, zygote):
        process.kill()
        assert gone(process)
        with suppress(BoxBroken):  # its worker may be about to end
            say(box)
        assert say(box) == "hello there"


def test_what_cannot_be_made_says_why() -> None:
    box = Box("support.boxed:refusing")
    for _ in range(2):
        with pytest.raises(RequestError, match="no such vocabulary"):
            say(box)
    box.close()
    box = Box("support.boxed:nothing")
    with pytest.raises(BoxBroken, match="AttributeError"):
        say(box)
    box.close()


def test_a_box_that_nobody_calls_has_no_process() -> None:
    before = psutil.Process().children()
    Box("support.boxed:Service", "hello").close()
    assert psutil.Process().children() == before


def test_a_box_that_is_closed_ends_calls_at_once_and_leaves_nothing() -> None:
    box = Box("support.boxed:Service", "hello")
    process = psutil.Process(box.call("process", seconds=30, gives=int))
    zygote = process.parent()
    assert zygote is not None
    ended = list[str]()

    def loop() -> None:
        with pytest.raises(BoxBroken) as raised:
            box.call("loop", seconds=60, gives=int)
        ended.append(str(raised.value))

    thread = threading.Thread(target=loop)
    thread.start()
    time.sleep(0.1)
    started = time.monotonic()
    box.close()
    thread.join()
    assert time.monotonic() - started < 5
    assert len(ended) == 1
    assert gone(process, zygote)
    with pytest.raises(EngineError):
        say(box)


SERVER = """
import os, sys, threading
sys.path[:] = {path!r}
from quire.capabilities.box import Box
box = Box("support.boxed:Service", "hello")
print(os.getpid(), box.call("process", seconds=30, gives=int), flush=True)
box.call("loop", seconds=60, gives=int)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_server_that_is_killed(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(path=sys.path)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        _, worker = map(int, server.stdout.readline().split())
        process = psutil.Process(worker)
        zygote = process.parent()
        assert zygote is not None
        os.kill(server.pid, how)
    assert gone(process, zygote)


def gone(*processes: psutil.Process) -> bool:
    """Within seconds; whoever adopts what has ended may be slow to bury it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(map(runs, processes)):
            return True
        time.sleep(0.01)
    return False


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
