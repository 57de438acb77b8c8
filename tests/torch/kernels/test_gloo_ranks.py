"""Ranks of several machines: the bits of those of one machine, and ends of all kinds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from quire.core.errors import RankError
from quire.kernels.gloo_ranks import GlooRanks, Inbox, meeting_point
from quire.kernels.ranks import Ranks
from support.ranks import ranks_of, together

ADDRESS = "127.0.0.1"
LIMIT = 20.0  # seconds, of what is over in milliseconds
Result = TypeVar("Result")


def on_machines(
    size: int, body: Callable[[GlooRanks], Result], timeout: float = LIMIT
) -> list[Result]:
    """What each of them gives; they are threads of this process, with queues for connections."""
    meet, first = meeting_point(ADDRESS, size, timeout), dict[int, Inbox]()
    others: dict[int, Inbox] = {rank: SimpleQueue() for rank in range(1, size)}
    first.update({rank: SimpleQueue() for rank in others})

    def run(rank: int) -> Result:
        def send(message: bytes) -> None:
            for inbox in [first[rank]] if rank else others.values():
                inbox.put(message)

        inboxes = {0: others[rank]} if rank else first
        where = (ADDRESS, meet.port) if rank else meet
        return body(GlooRanks(rank, size, send, inboxes, where, ADDRESS, timeout))

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def test_sums_and_gathers_are_those_of_one_machine() -> None:
    shapes = [(dtype, n) for dtype in (torch.float32, torch.bfloat16) for n in (1, 577, 300_001)]

    def compute(one: Ranks) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(one.rank)
        found: list[Tensor | None] = []
        for dtype, count in shapes:
            x = torch.randn(2, count, generator=generator).to(dtype)
            one.add_up(x)
            one.add_up(x[:, :1])  # rows that do not lie side by side
            found += [x, one.gather(torch.full((3, count), one.rank))]
        return found

    for found, expected in zip(
        on_machines(3, compute), together(ranks_of(3), compute), strict=True
    ):
        for x, y in zip(found, expected, strict=True):
            assert x is y or (x is not None and y is not None and torch.equal(x, y))


def test_messages_come_whole_and_in_order() -> None:
    messages = [random.Random(i).randbytes(size) for i, size in enumerate((0, 1, 5_000_000, 9))]

    def talk(one: GlooRanks) -> None:
        if one.rank:
            assert one.hear(0.001) is None
        one.add_up(torch.ones(1))
        for message in messages:
            if one.rank:
                assert one.hear() == message
                one.answer(message[:9] + bytes([one.rank]))
            else:
                one.tell(message)
                assert one.answers(LIMIT) == [message[:9] + b"\1", message[:9] + b"\2"]

    on_machines(3, talk)


def test_one_that_leaves_is_gone_for_all_others() -> None:
    def leave(one: GlooRanks) -> str:
        one.add_up(torch.ones(5))
        if one.rank == 2:
            return ""
        with pytest.raises(RankError) as raised:
            one.add_up(torch.ones(5))
        return str(raised.value)

    told = on_machines(3, leave)[0]
    assert told.startswith("a rank is gone")


@pytest.mark.parametrize("waiting", ["add_up", "answers", "hear"])
def test_one_that_hangs_does_not_hang_the_others(waiting: str) -> None:
    done = threading.Event()

    def hang(one: GlooRanks) -> str:
        if one.rank == (waiting != "hear"):
            done.wait(LIMIT)
            return ""
        waits: dict[str, Callable[[], object]] = {
            "add_up": lambda: one.add_up(torch.ones(5)),
            "answers": lambda: one.answers(0.3),
            "hear": lambda: one.add_up(torch.ones(5)),
        }
        with pytest.raises(RankError) as raised:
            waits[waiting]()
        done.set()
        return str(raised.value)

    reason = max(on_machines(2, hang, 0.5))
    assert reason.endswith(("did not answer within 0.5 seconds", "within 0.3 seconds"))


def test_all_that_anybody_waits_in_ends_at_once() -> None:
    """As who watches its connections ends each of them."""

    def wait(one: GlooRanks) -> None:
        threading.Timer(0.1, lambda: one.abort("enough is enough")).start()
        waits: Callable[[], object] = one.hear if one.rank else lambda: one.answers(LIMIT)
        for call in (waits, lambda: one.add_up(torch.ones(5)), lambda: one.gather(torch.ones(5))):
            with pytest.raises(RankError, match="enough is enough"):
                call()

    on_machines(3, wait)
