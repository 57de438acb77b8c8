"""What is done at the end, where nobody answers."""

from __future__ import annotations

import threading

from quire_cluster.ending import TimedEnding


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
