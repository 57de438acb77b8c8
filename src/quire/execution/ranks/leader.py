"""Rank 0's worker: whatever it does it tells the others first, so that all do it together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from struct import unpack

from torch import Tensor

from quire.core.errors import RankError
from quire.core.memory import BlockMove, MoveKind
from quire.execution.adapters import StepAdapters
from quire.execution.batch import StepBatch
from quire.execution.forward import BlockStore, Forward, Hidden, OtherHead, Sampled, Worker
from quire.execution.ranks.messages import Order, encode
from quire.execution.ranks.source import SharedSource
from quire.kernels.ops import Kernels
from quire.kernels.ranks import RankGroup
from quire.models.base import Model

_INTERRUPTED = "rank 0 was interrupted in the middle of a step"


class Orders:
    """One message a step, and one more where blocks are swapped, fetched or stored.

    Once a rank has failed, or a step was torn, no order can be carried out any more.

    why: a RankError that came up, as whoever watches the ranks explains it.
    source: of blocks beyond the pool, if there are any.
    """

    def __init__(
        self,
        group: RankGroup,
        adapters: StepAdapters | None,
        timeout: float,
        why: Callable[[RankError], RankError],
        source: SharedSource | None = None,
    ) -> None:
        self._group = group
        self._timeout = timeout
        self._adapters = adapters
        self._why = why
        self._source = source
        self._copies: list[BlockMove] = []  # to be told with what is computed after them
        self._torn: RankError | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do: left half way, it cannot be taken up again."""
        if self._torn is not None:
            raise self._torn
        try:
            yield
        except RankError as error:
            self._torn = self._why(error)
            raise self._torn from error
        except BaseException as error:
            self._torn = RankError(f"{_INTERRUPTED}: {error!r}")
            self._group.abort(str(self._torn))
            if isinstance(error, Exception):
                raise self._torn from error
            raise

    def tell_moves(self, moves: Sequence[BlockMove]) -> bool:
        """Whether they may fail, so that there will be answers."""
        may_fail = any(move.kind is not MoveKind.COPY for move in moves)
        if may_fail and self._copies:
            self.tell()
        self._copies += moves
        if may_fail:
            self.tell()
        return may_fail

    def failed(self, moves: Sequence[BlockMove]) -> set[int]:
        """Places of the moves told last that failed on some rank: then they failed for all."""
        answers = self._group.answers(self._timeout)
        places = {place for one in answers for place in unpack(f"{len(one) // 8}q", one)}
        for content in (moves[place].content for place in places):
            if content is not None and self._source is not None:
                self._source.forget(content.name)
        return places

    def tell(self, batch: StepBatch | None = None, states: Tensor | None = None) -> None:
        moves, self._copies = self._copies, []
        adapters: list[bytes] = []
        if batch is not None and batch.header.adapted and self._adapters is not None:
            adapters = [one.fingerprint for one in self._adapters.at_hand]
        source = self._source
        used = () if source is None else source.take_used()
        cleared = source is not None and source.take_cleared()
        self._group.tell(encode(Order(moves, batch, adapters, states, used, cleared)))


class LeadingWorker(Worker):
    """A worker with which the others compute."""

    def __init__(
        self,
        model: Model,
        kv_cache: BlockStore,
        forward: Forward,
        kernels: Kernels,
        orders: Orders,
    ) -> None:
        super().__init__(model, kv_cache, forward, kernels)
        self._orders = orders
        self._asked: Tensor | None = None  # rows that the others pass to the head by themselves

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves on all ranks; return those that failed, except stores of other ranks."""
        if not moves:
            return []
        with self._orders.together():
            before = self._orders.tell_moves(moves)
            failed = super().move(moves)
            if not before:
                return failed
            places = self._orders.failed(moves)
        own = set(map(id, failed))
        return [
            one
            for place, one in enumerate(moves)
            if id(one) in own or (place in places and one.kind is not MoveKind.STORE)
        ]

    def compute(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        with self._orders.together():
            self._orders.tell(batch)
            hidden = super().compute(batch, sampled)
        self._asked = hidden.asked if batch.header.asked else None
        return hidden

    def logits(self, states: Tensor, heads: Sequence[OtherHead] = ()) -> Tensor:
        assert not heads, "refused where ranks divide the model's own"
        with self._orders.together():
            if states is not self._asked:
                self._orders.tell(states=states)
            self._asked = None
            return super().logits(states)
