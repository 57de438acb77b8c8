"""What is fetched from a source of blocks, and what is stored in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    name_of_state,
)
from quire.core.protocol.decision import RecoveryCosts
from quire.core.scheduling.prefix_cache import Offload
from quire.core.scheduling.sequence import Sequence, SequenceGroup


def offloading_to(
    source: BlockSource | None,
) -> Callable[[KVAllocator, Contents, RecoveryCosts], Offload] | None:
    """What a prefix cache makes its use of a source with."""
    return None if source is None else partial(Offloading, source)


class Offloading:
    """Looks in a source for those who are let in, and gives it what steps have computed.

    Blocks are stored by the step after the one that fills them, before it moves anything else. So
    a known prefix is kept without waiting for its request to end, or for its blocks to be needed,
    and what is stored in one step is no more than what has been computed in another.
    """

    def __init__(
        self,
        source: BlockSource,
        allocator: KVAllocator,
        contents: Contents,
        costs: RecoveryCosts,
    ) -> None:
        self._block_size = allocator.block_size
        self._contents = contents
        self._source = source
        self._fetches = costs.fetching_pays(allocator.block_size)
        self._most = allocator.usage().capacity // allocator.block_size
        self._filled: dict[BlockHash, tuple[int, ...]] = {}  # the tokens of blocks to be stored
        self._prompts: set[BlockHash] = set()  # those of them that prompts begin with
        self._in_use: dict[BlockHash, int] = {}  # since the last step: where each is in its text

    @property
    def has_work(self) -> bool:
        return bool(self._filled) and self._source.room() > 0

    def widen(self, group: SequenceGroup, demand: Demand) -> Demand:
        if not self._fetches or not group.may_fetch:
            return demand
        return replace(demand, fetchable=_Known(self._source))

    def admitted(self, branch: Sequence, num_tokens: int) -> list[BlockMove]:
        self._note_use(branch.block_hashes, num_tokens // self._block_size)
        fetches = []
        for move in self._contents.take_fetches():
            content = self._content(branch, move.source)
            if move.content is not None:  # a state has a name of its own
                content = content._replace(name=move.content.name)
            fetches.append(move._replace(source=OUTSIDE, content=content))
        return fetches

    def fill(self, branch: Sequence, first: int, end: int) -> None:
        """A step fills these blocks of the branch, which have their names already.

        A source tells blocks by their tokens once more, so those of texts with vectors are none.
        """
        if first == end or branch.spans:
            return
        if end - first > 1 or (end + branch.seq_id) % _between_uses(end) == 0:
            self._note_use(branch.block_hashes, end)
        for number in range(first, end):
            self._in_use[branch.block_hashes[number]] = number
            content = self._content(branch, number)
            self._filled[content.name] = content.token_ids
            if (number + 1) * self._block_size <= branch.num_prompt_tokens:
                self._prompts.add(content.name)
        while len(self._filled) > self._most:  # what has long been filled is long gone
            self._next()

    def store_no_state(self, name: BlockHash) -> None:
        self._prompts.discard(name)

    def clear(self) -> None:
        """See ``BlockSource.clear``."""
        self._filled.clear()
        self._prompts.clear()
        self._in_use.clear()
        self._source.clear()

    def store(self) -> list[BlockMove]:
        """As far as there is room. What failed has lost its name, and what has been taken since is
        gone. The source first learns what has been used, so that it knows what must make room.
        """
        source, filled, moves = self._source, self._filled, list[BlockMove]()
        if self._in_use:
            source.used(sorted(self._in_use, key=self._in_use.__getitem__, reverse=True))
            self._in_use.clear()
        room = source.room() if filled else 0
        while filled and room:
            found = self._to_store(*self._next())
            moves += found
            room -= bool(found)
        return moves

    def _next(self) -> tuple[Content, bool]:
        """Take the first that is to be stored; whether a prompt begins with it."""
        name = next(iter(self._filled))
        of_prompt = name in self._prompts
        self._prompts.discard(name)
        return Content(name, self._filled.pop(name)), of_prompt

    def _to_store(self, content: Content, of_prompt: bool) -> list[BlockMove]:
        """The moves for a block, and for the state after it, which is as large as many blocks: so
        those that answers leave are not stored.
        """
        contents, source, moves = self._contents, self._source, list[BlockMove]()
        blocks = contents.locate(content.name)
        if blocks is not None and not source.has(content.name):
            moves += [
                BlockMove(MoveKind.STORE, block, OUTSIDE, kv_group, content)
                for kv_group, block in enumerate(blocks)
            ]
        state = contents.locate_state(content.name) if of_prompt else None
        if state is not None and not source.has(name_of_state(content.name)):
            kv_group, slot = state
            moves.append(BlockMove(MoveKind.STORE, slot, OUTSIDE, kv_group, _of_state(content)))
        return moves

    def _note_use(self, names: list[BlockHash], count: int) -> None:
        for number in range(count):
            self._in_use[names[number]] = number

    def _content(self, branch: Sequence, number: int) -> Content:
        size = self._block_size
        tokens = branch.token_ids[number * size : (number + 1) * size]
        return Content(branch.block_hashes[number], tuple(tokens))


def _of_state(content: Content) -> Content:
    """What the state after a block is kept as."""
    return content._replace(name=name_of_state(content.name))


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
