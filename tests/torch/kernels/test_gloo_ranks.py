"""Ranks of several machines: the bits of those of one machine, and ends of all kinds."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError, RankError
from quire.kernels.gloo_ranks import GlooRanks
from quire.kernels.ranks import Ranks
from support.ranks import ranks_of, together

ADDRESS = "127.0.0.1"
LIMIT = 20.0  # seconds, of what is over in milliseconds
Result = TypeVar("Result")


def free_port() -> int:
    with socket.socket() as one:
        one.bind((ADDRESS, 0))
        return int(one.getsockname()[1])


def on_machines(
    size: int, body: Callable[[GlooRanks], Result], timeout: float = LIMIT
) -> list[Result]:
    """What each of them gives; they are threads of this process."""
    port = free_port()
    with ThreadPoolExecutor(size) as threads:
        return list(
            threads.map(lambda i: body(GlooRanks(i, size, ADDRESS, port, timeout)), range(size))
        )


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
    assert told.startswith(("rank 2 is gone", "a rank is gone"))  # its line, or the sum's


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
    def wait(one: GlooRanks) -> None:
        if one.rank == 0:
            threading.Timer(0.1, lambda: one.abort("enough is enough")).start()
            waits: Callable[[], object] = lambda: one.answers(LIMIT)  # noqa: E731
        else:
            waits = one.hear
        for call in (waits, lambda: one.add_up(torch.ones(5))):
            with pytest.raises(RankError, match="enough is enough"):
                call()

    on_machines(3, wait)


def test_who_has_no_place_is_told_and_strangers_are_left_out() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(GlooRanks, 0, 2, ADDRESS, port, LIMIT, LIMIT)
        for rank, size, reason in ((1, 3, "rank 1 is one of 3, rank 0 of 2"), (2, 2, "no rank 2")):
            with pytest.raises(ConfigError, match=reason):
                GlooRanks(rank, size, ADDRESS, port, LIMIT)
        with pytest.raises(ConfigError, match=f"port {port} cannot be listened at"):
            GlooRanks(0, 2, ADDRESS, port, LIMIT)
        with socket.create_connection((ADDRESS, port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: me\r\n\r\n")
            with suppress(ConnectionError):
                assert not stranger.recv(100)
        second = GlooRanks(1, 2, ADDRESS, port, LIMIT)
        second.answer(b"here")
        assert first.result().answers(LIMIT) == [b"here"]
    with pytest.raises(RankError, match=r"ranks 1, 2 did not come within 0\.1 seconds"):
        GlooRanks(0, 3, ADDRESS, free_port(), LIMIT, start_timeout=0.1)
    with pytest.raises(ConfigError, match="rank 0 does not listen"):
        GlooRanks(1, 3, ADDRESS, free_port(), LIMIT, start_timeout=0.1)
