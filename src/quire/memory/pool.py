"""Physical blocks: who counts on them, which are free, and what the free ones still hold."""

from __future__ import annotations

from collections import OrderedDict

from quire.memory.blocks import BlockHash


class BlockPool:
    """``num_blocks`` blocks with reference counts and an index of their contents.

    A block is *held* while its reference count is positive. A free block is *cached* if its
    content has been published under a hash and not been overwritten since, else *blank*. Blank
    blocks are taken first; then cached ones, least recently released first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._blank = list(reversed(range(num_blocks)))  # a stack: block 0 goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # in order of release

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, blank and cached."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def take(self) -> int:
        """A free block with reference count 1, its old content forgotten.

        The caller has made sure that one is free.
        """
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner of a block that is held or cached."""
        if self.ref_counts[block] == 0:
            del self._cached[block]
        self.ref_counts[block] += 1

    def release(self, block: int) -> bool:
        """One owner fewer; True if that was the last and the block is free now."""
        self.ref_counts[block] -= 1
        if self.ref_counts[block]:
            return False
        if self._hashes[block] is None:
            self._blank.append(block)
        else:
            self._cached[block] = None
        return True

    def publish(self, block: int, content: BlockHash) -> None:
        """Let ``content`` be found in ``block`` from now on.

        Where another block already holds that content, the index keeps the older one: hash to
        block is one to one, so a block leaves the index exactly when it is overwritten.
        """
        if self._hashes[block] is None and content not in self._block_of:
            self._hashes[block] = content
            self._block_of[content] = block

    def find(self, content: BlockHash) -> int | None:
        """The block, held or cached, that holds ``content``."""
        return self._block_of.get(content)

    def content(self, block: int) -> BlockHash | None:
        """The hash under which ``block`` is published."""
        return self._hashes[block]

    def _forget(self, block: int) -> None:
        content = self._hashes[block]
        if content is not None:
            del self._block_of[content]
            self._hashes[block] = None
