"""Ranks of one machine: sums in their order, messages, and ends of all kinds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError, RankError
from quire.kernels.shared_ranks import SharedMemoryRanks
from support.ranks import rank_processes, ranks_of, together

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 3, 63, 65, 577, 4097, 70_000, 700_001)  # the last ones in several pieces
LIMIT = 10.0  # seconds, of what is over in milliseconds

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only on Linux")


def in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


@pytest.mark.parametrize(("size", "threads"), [(1, 1), (2, 1), (2, 2), (4, 1), (5, 2)])
def test_a_sum_has_the_bits_of_the_ranks_order(size: int, threads: int) -> None:
    torch.manual_seed(0)
    shapes = [(dtype, count) for dtype in DTYPES for count in SIZES]
    random.Random(0).shuffle(shapes)  # so that either place of a part has had them all
    parts = [[torch.randn(count).to(dtype) for dtype, count in shapes] for _ in range(size)]
    ranks = ranks_of(size)

    def add(one: SharedMemoryRanks) -> list[Tensor]:
        torch.set_num_threads(threads)
        found = [part.clone() for part in parts[one.rank]]
        for x in found:
            one.add_up(x)
        return found

    before = torch.get_num_threads()
    everywhere = together(ranks, add)
    torch.set_num_threads(before)
    for number in range(len(shapes)):
        expected = in_order([part[number] for part in parts])
        assert all(torch.equal(found[number], expected) for found in everywhere)


def test_rows_that_do_not_lie_side_by_side_and_types_that_are_no_floats() -> None:
    def add(one: SharedMemoryRanks) -> Tensor:
        x = torch.full((6, 8), one.rank + 1.0)
        one.add_up(x[:, 2:5])
        with pytest.raises(TypeError, match="int64"):
            one.add_up(torch.ones(3, dtype=torch.int64))
        return x

    for rank, x in enumerate(together(ranks_of(2), add)):
        assert (x[:, 2:5] == 3).all() and (x[:, :2] == rank + 1).all()


def test_rank_0_is_given_what_all_have() -> None:
    def gather(one: SharedMemoryRanks) -> list[Tensor | None]:
        shapes = ((), (1,), (3, 5), (3, 400_000))
        return [one.gather(torch.full(shape, one.rank)) for shape in shapes]

    first, *others = together(ranks_of(3), gather)
    for found in first:
        assert found is not None
        assert all((found[rank] == rank).all() for rank in range(3))
    assert others == [[None] * 4] * 2


def test_messages_of_all_sizes_come_whole_and_in_order() -> None:
    sizes = (0, 1, 65_527, 65_528, 65_529, 3_000_000, 5, *[70_000] * 20)  # more than has room
    messages = [random.Random(i).randbytes(size) for i, size in enumerate(sizes)]

    def talk(one: SharedMemoryRanks) -> None:
        if one.rank:
            assert one.hear(0.001) is None
            time.sleep(0.05 * one.rank)  # they do not all keep up
            for message in messages:
                assert one.hear() == message
                one.answer(message + bytes([one.rank]))
            return
        time.sleep(0.05)
        for message in messages[:-20]:
            one.tell(message)
            assert one.answers(LIMIT) == [message + b"\1", message + b"\2"]
        telling = threading.Thread(target=lambda: [one.tell(each) for each in messages[-20:]])
        telling.start()
        for message in messages[-20:]:
            assert one.answers(LIMIT) == [message + b"\1", message + b"\2"]
        telling.join()

    together(ranks_of(3), talk)


def test_who_cannot_join_is_told_why(tmp_path: Path) -> None:
    first, _ = ranks_of(2)
    other = tmp_path / "other"
    other.write_bytes(bytes(100))
    for name, rank, size, message in (
        (first.name, 1, 2, "there already"),
        (first.name, 1, 3, "not that of so many ranks"),
        (first.name, 2, 2, "no such rank"),
        (str(other), 1, 2, "not that of so many ranks"),
        (str(tmp_path / "none"), 1, 2, "not there"),
    ):
        with pytest.raises(ConfigError, match=message):
            SharedMemoryRanks.join(name, rank, size, 1.0)
    with pytest.raises(ConfigError, match="from 1 to 64, not 65"):
        SharedMemoryRanks.create(65, 1.0)


@pytest.mark.parametrize("what", ["add", "hear"])
@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_rank_is_killed_the_others_are_told(what: str, victim: int) -> None:
    with rank_processes(3, 30.0, what) as ranks:
        time.sleep(random.uniform(0, 0.05))
        ranks[victim].send(signal.SIGKILL)
        killed = time.monotonic()
        for rank in {0, 1, 2} - {victim}:
            assert ranks[rank].last_words() == f"rank {victim} is gone"
        assert time.monotonic() - killed < LIMIT


def test_a_rank_that_hangs_does_not_hang_the_others() -> None:
    with rank_processes(2, 1.5, "add") as ranks:
        time.sleep(random.uniform(0, 0.05))
        ranks[1].send(signal.SIGSTOP)
        assert ranks[0].last_words() == "rank 1 did not answer within 1.5 seconds"
        ranks[1].send(signal.SIGCONT)
        assert ranks[1].last_words() == "rank 1 did not answer within 1.5 seconds"


def test_a_rank_that_has_left_is_gone_but_what_it_has_said_stays() -> None:
    first, second = ranks_of(2)
    second.answer(b"the last")
    del second
    assert first.answers(LIMIT) == [b"the last"]
    with pytest.raises(RankError, match="rank 1 is gone"):
        first.answers(LIMIT)
    with pytest.raises(RankError, match="rank 1 is gone"):
        first.tell(b"")


@pytest.mark.parametrize("waiting", ["hear", "answers", "add_up", "gather", "tell"])
def test_all_that_anybody_waits_in_ends_at_once(waiting: str) -> None:
    ranks = ranks_of(3)
    waits = {
        "hear": lambda: ranks[1].hear(),
        "answers": lambda: ranks[0].answers(60.0),
        "add_up": lambda: ranks[1].add_up(torch.ones(5)),
        "gather": lambda: ranks[2].gather(torch.ones(5)),
        "tell": lambda: [ranks[0].tell(bytes(100_000)) for _ in range(20)],
    }
    threading.Timer(0.05, lambda: ranks[0].abort("enough is enough")).start()
    with pytest.raises(RankError, match="enough is enough"):
        waits[waiting]()
    for call in waits.values():
        with pytest.raises(RankError, match="enough is enough"):
            call()


def test_nothing_is_left_behind() -> None:
    def memory() -> list[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        files = [str(each.readlink()) for each in links]
        return [each for each in maps + files if "quire-ranks" in each]

    ranks = ranks_of(2)
    assert memory()
    del ranks
    assert not memory()
    assert not list(Path("/dev/shm").glob("*quire-ranks*"))
