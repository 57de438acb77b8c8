"""What is done at the end, where nobody answers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import traceback
import warnings

import pytest

from quire.core.errors import ModelError
from quire_cluster.ending import TimedEnding

_HANGS = """
import ctypes, os, subprocess, sys
sys.path[:0] = {path}
from quire.tools.cli import main
from quire_cluster import running
from quire_cluster.keeper import Keeper

def run(settings, tell):
    keeper = Keeper(0.1)
    with running._signals():
        raylet = subprocess.Popen(["sleep", "1000"])
        keeper.watch()
        keeper.close()  # which waits for the raylet, and for nobody else
        assert raylet.wait() < 0
        os.write(1, b"it hangs\\n")
        mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        for _ in range(2):  # with Python's lock, and for no signal
            library.pthread_mutex_lock(mutex)

running.run = run
running._LEAVING = running.SLOWEST = running._TELLING = 0.1
main(["deploy", "--shutdown-timeout", "0.1", "--port", "0"])
"""


def test_who_does_not_answer_is_not_waited_for_and_nobody_else_is_asked_then() -> None:
    never, done = threading.Event(), list[str]()
    ending = TimedEnding()
    ending.within(0.05)
    ending.within(1e9)  # which is no more time
    ending.do("the gateway", never.wait)
    ending.do("Ray", lambda: done.append("Ray"))
    never.set()
    assert ending.left == "the gateway did not end in time"
    assert not done


def test_a_failure_ends_it_by_name() -> None:
    ending = TimedEnding()
    ending.within(60.0)
    ending.do("the application 'quire'", lambda: None)
    assert ending.left is None

    def fail() -> None:
        raise ConnectionError("the actor is gone\nand more")

    ending.do("the gateway", fail)
    ending.do("Ray", fail)
    assert ending.left == "the gateway failed: the actor is gone"


def test_a_second_signal_is_heard_while_somebody_does_not_answer() -> None:
    never, asked = threading.Event(), threading.Event()
    ending = TimedEnding()
    ending.within(60.0)
    asked.set()
    ending.do("the gateway", never.wait, enough=asked)
    never.set()
    assert ending.left is None


def test_the_process_is_gone_whatever_hangs() -> None:
    pytest.importorskip("ray")
    program = [sys.executable, "-c", _HANGS.format(path=sys.path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == b"it hangs\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == signal.SIGXCPU
            assert b"something hangs, and its time is over" in process.stderr.read()
        finally:
            process.kill()


def test_why_an_engine_could_not_be_started() -> None:
    pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray itself is warned of
        from quire_cluster.running import own_words

    told = traceback.format_exception_only(ModelError("config.json is not here"))
    message = f"The deployment failed to start 2 times:\n{''.join(told)}\nand more of Ray's"
    assert own_words([message, "no news"]) == "config.json is not here"
    assert own_words(["no news"]) is None
