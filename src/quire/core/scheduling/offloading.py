"""What is fetched from a source of blocks, and what is stored in it."""

from __future__ import annotations

from dataclasses import replace

from quire.core.memory import (
    OUTSIDE,
    BlockHash,
    BlockMove,
    BlockSource,
    Content,
    Contents,
    Demand,
    KVAllocator,
    MoveKind,
)
from quire.core.protocol.decision import RecoveryCosts
from quire.core.scheduling.sequence import Sequence, SequenceGroup


class Offloading:
    """Looks in a source for those who are let in, and gives it what steps have computed.

    Blocks are stored by the step after the one that fills them, before it moves anything else. So
    a known prefix is kept without waiting for its request to end, or for its blocks to be needed,
    and what is stored in one step is no more than what has been computed in another.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        contents: Contents,
        source: BlockSource,
        costs: RecoveryCosts,
    ) -> None:
        self._block_size = allocator.block_size
        self._contents = contents
        self._source = source
        self._fetches = costs.fetching_pays(allocator.block_size)
        self._most = allocator.usage().capacity // allocator.block_size
        self._filled: dict[BlockHash, tuple[int, ...]] = {}  # the tokens of blocks to be stored
        self._in_use: dict[BlockHash, int] = {}  # since the last step: where each is in its text

    @property
    def has_work(self) -> bool:
        """Whether there are blocks that the source would take now."""
        return bool(self._filled) and self._source.room() > 0

    def widen(self, group: SequenceGroup, demand: Demand) -> Demand:
        """The demand, for what can be fetched as well."""
        if not self._fetches or not group.may_fetch:
            return demand
        return replace(demand, fetchable=_Known(self._source))

    def admitted(self, branch: Sequence, num_tokens: int) -> list[BlockMove]:
        """``num_tokens`` of a branch have been found; the moves that fetch some of them."""
        self._note_use(branch.block_hashes, num_tokens // self._block_size)
        return [
            move._replace(source=OUTSIDE, content=self._content(branch, move.source))
            for move in self._contents.take_fetches()
        ]

    def fill(self, branch: Sequence, first: int, end: int) -> None:
        """A step fills these blocks of the branch, which have their names already."""
        if first == end:
            return
        if end - first > 1 or (end + branch.seq_id) % _between_uses(end) == 0:
            self._note_use(branch.block_hashes, end)
        for number in range(first, end):
            self._in_use[branch.block_hashes[number]] = number
            content = self._content(branch, number)
            self._filled[content.name] = content.token_ids
        while len(self._filled) > self._most:  # what has long been filled is long gone
            del self._filled[next(iter(self._filled))]

    def clear(self) -> None:
        """Let nothing be found here that has been computed until now; see ``BlockSource.clear``."""
        self._filled.clear()
        self._in_use.clear()
        self._source.clear()

    def store(self) -> list[BlockMove]:
        """No step is under way: moves for what has been filled, as far as there is room for it.

        What failed has lost its name, and what has been taken since is gone. The source first
        learns what has been used, so that it knows what must make room.
        """
        source, filled, moves = self._source, self._filled, list[BlockMove]()
        if self._in_use:
            source.used(sorted(self._in_use, key=self._in_use.__getitem__, reverse=True))
            self._in_use.clear()
        room = source.room() if filled else 0
        while filled and room:
            name = next(iter(filled))
            content = Content(name, filled.pop(name))
            blocks = self._contents.locate(name)
            if blocks is None or source.has(name):
                continue
            moves += [
                BlockMove(MoveKind.STORE, block, OUTSIDE, kv_group, content)
                for kv_group, block in enumerate(blocks)
            ]
            room -= 1
        return moves

    def _note_use(self, names: list[BlockHash], count: int) -> None:
        for number in range(count):
            self._in_use[names[number]] = number

    def _content(self, branch: Sequence, number: int) -> Content:
        size = self._block_size
        tokens = branch.token_ids[number * size : (number + 1) * size]
        return Content(branch.block_hashes[number], tuple(tokens))


def _between_uses(count: int) -> int:
    """Of a text that grows block by block, after how many the use of all of them is noted.

    A 64th to a 32nd of them: that many of a text's last blocks may outlive its beginning, and a
    token costs no more in a long text than in a short one.
    """
    return 1 << max(0, count.bit_length() - 6)


class _Known:
    """What a source has, looked up once for each name: an allocator looks more than once."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._answers: dict[BlockHash, bool] = {}

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, bytes)
        if name not in self._answers:
            self._answers[name] = self._source.has(name)
        return self._answers[name]
