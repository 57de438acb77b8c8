"""What rank 0 tells the others arrives as it was; and a step that was torn is not gone on with."""

from __future__ import annotations

from math import inf
from struct import pack as numbers
from typing import Any

import pytest
import torch

from quire.blocks.store import RecordForm, RecordShelf
from quire.core.errors import RankError
from quire.core.memory import BlockMove, BlockTable, Content, MoveKind
from quire.core.protocol import Adapter, Chunk, SoftCut
from quire.execution.adapters import StepAdapters
from quire.execution.batch import pack
from quire.execution.ranks import LeadingWorker, Orders, SharedSource
from quire.execution.ranks.messages import Order, decode, encode

COPY, OUT = BlockMove(MoveKind.COPY, 3, 4), BlockMove(MoveKind.SWAP_OUT, 5, 6, 1)
STORE = BlockMove(MoveKind.STORE, 5, -1, 1, Content(b"n" * 16, (1, 2, 3, 2**40)))
FETCH = BlockMove(MoveKind.FETCH, -1, 5, 0, Content(bytes(range(16)), (9, 8, 7, 6)))
TABLES = BlockTable((4, 5), 4, further=(BlockTable((1, 2), 4, 1, 1),))
CUTS = [SoftCut(1, 2, -0.5, 3), SoftCut(1, 4, -inf, 0)]
CHUNKS = [Chunk(0, [7, 8, 9], 2, TABLES, 2, None), Chunk(1, [5], 4, TABLES, 3, None)]


@pytest.mark.parametrize(
    "order",
    [
        Order(),
        Order([COPY, OUT, COPY]),
        Order([STORE, COPY, FETCH], pack(CHUNKS, 4), [b"a" * 32], used=[b"b" * 16, b"c" * 16]),
        Order([OUT], pack(CHUNKS, 4, [2, 3]), [b"a" * 32, b"b" * 32]),
        Order(batch=pack(CHUNKS, 4, adapters=[0, -1])),
        Order(batch=pack([CHUNKS[0], CHUNKS[1]._replace(cuts=CUTS)], 4, adapters=[0, -1])),
        Order(states=torch.arange(6, dtype=torch.bfloat16).view(2, 3)),
    ],
)
def test_an_order_arrives_as_it_was(order: Order) -> None:
    found = decode(encode(order))
    assert list(found.moves) == list(order.moves)
    assert list(found.adapters) == list(order.adapters)
    assert list(found.used) == list(order.used)
    assert (found.batch is None) == (order.batch is None)
    if order.batch is not None and found.batch is not None:
        assert found.batch.header == order.batch.header
        assert found.batch.query_starts == order.batch.query_starts
        assert found.batch.buffer.equal(order.batch.buffer)
    if order.states is None:
        assert found.states is None
    else:
        assert found.states is not None and found.states.dtype == order.states.dtype
        assert found.states.equal(order.states)


class Group:
    """One other rank, of whom it is known what it will answer."""

    def __init__(self, *answers: bytes) -> None:
        self.told: list[Order] = []
        self.aborted = ""
        self._answers = list(answers)

    def tell(self, message: bytes) -> None:
        self.told.append(decode(message))

    def answers(self, timeout: float) -> list[bytes]:
        return [self._answers.pop(0)]

    def abort(self, reason: str) -> None:
        self.aborted = reason


class Cache:
    block_size, layers = 4, ()

    def __init__(self, *failing: BlockMove) -> None:
        self._failing = failing

    def move(self, moves: Any) -> list[BlockMove]:
        return [move for move in moves if move in self._failing]


class Model:
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return states


def leading(
    group: Any, forward: Any = None, *failing: BlockMove, source: SharedSource | None = None
) -> LeadingWorker:
    orders = Orders(group, StepAdapters({}), 1.0, lambda error: error, source)
    model: Any = Model()
    kernels: Any = None
    return LeadingWorker(model, Cache(*failing), forward, kernels, orders)


def test_copies_wait_for_the_next_message_and_swaps_for_answers() -> None:
    group = Group(numbers("q", 1))
    worker = leading(group, None, OUT)
    other = OUT._replace(source=9)
    assert worker.move([COPY]) == [] and group.told == []
    # Rank 0 fails at the first, the other rank at the second.
    assert worker.move([OUT, other, COPY]) == [OUT, other]
    assert [list(order.moves) for order in group.told] == [[COPY], [OUT, other, COPY]]


def test_only_rows_that_others_cannot_know_travel() -> None:
    group, states = Group(), torch.ones(4, 8)

    class Hidden:
        asked = states[:2]

    worker = leading(group, lambda batch, sampled: Hidden)
    hidden = worker.compute(pack(CHUNKS, 4, [2, 3]), lambda: states)
    worker.logits(hidden.asked)
    worker.logits(states)
    assert [order.states is None for order in group.told] == [True, False]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_was_torn_is_not_gone_on_with(error: type[BaseException]) -> None:
    def forward(batch: Any, sampled: Any) -> Any:
        raise error

    group = Group()
    worker = leading(group, forward)
    batch = pack(CHUNKS, 4)
    with pytest.raises((RankError, KeyboardInterrupt)):
        worker.compute(batch, lambda: torch.zeros(0))
    assert "interrupted in the middle of a step" in group.aborted
    with pytest.raises(RankError, match="interrupted in the middle of a step"):
        worker.move([COPY])
    assert len(group.told) == 1


def test_adapters_are_told_by_their_content() -> None:
    adapters, group = StepAdapters({}), Group()
    adapters.at_hand = [Adapter(b"x" * 32, "x")]
    Orders(group, adapters, 1.0, lambda error: error).tell(pack(CHUNKS, 4, adapters=[0, -1]))  # type: ignore[arg-type]
    assert group.told[0].adapters == [b"x" * 32]


def test_what_one_rank_lacks_nobody_has() -> None:
    """A fetch that fails is told; nobody relies on what is stored. What is in use is told once."""

    forgotten: list[bytes] = []
    own = RecordShelf(RecordForm(b"", 4, (8,)), 0)
    own.forget = forgotten.append  # type: ignore[method-assign]
    group, source = Group(numbers("2q", 0, 1), numbers("0q")), SharedSource(own)
    worker = leading(group, None, source=source)
    source.used([b"a" * 16])
    assert worker.move([STORE, FETCH]) == [FETCH]
    assert STORE.content and FETCH.content
    assert forgotten == [STORE.content.name, FETCH.content.name]
    assert worker.move([STORE]) == [] and len(forgotten) == 2
    assert [list(order.used) for order in group.told] == [[b"a" * 16], []]
