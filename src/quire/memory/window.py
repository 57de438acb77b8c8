"""What a sliding window means in blocks: which are left behind, and how many are ever held."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.memory.allocator import Demand


class Window(NamedTuple):
    """Each token sees itself and the ``tokens - 1`` before it.

    step_tokens: the most tokens that one step computes, over all sequences.
    """

    tokens: int
    step_tokens: int

    def left_behind(self, num_tokens: int, block_size: int) -> int:
        """Leading blocks that no token from position ``num_tokens`` on sees.

        The next token sees position num_tokens - tokens + 1 and those after it.
        """
        return max(0, num_tokens - self.tokens + 1) // block_size

    def seq_blocks(self, block_size: int) -> int:
        """Most blocks of a sequence, up to the first block of what a step adds to it.

        The window less one token, and one new token, touch at most one block more than those
        tokens fill; and where a step ends inside a block, that is one more.
        """
        return -(-(self.tokens - 1) // block_size) + 2

    def step_blocks(self, block_size: int) -> int:
        """Blocks beyond ``seq_blocks`` that a step takes, over all of its sequences."""
        return (self.step_tokens - 1) // block_size

    def most_held(self, lengths: Iterable[int], block_size: int) -> int:
        """Blocks that sequences of these ``lengths``, in blocks, hold at most at one time."""
        each, total, beyond = self.seq_blocks(block_size), 0, 0
        for length in lengths:
            total += min(length, each)
            beyond += max(0, length - each)
        return total + min(beyond, self.step_blocks(block_size))


def most_held(demand: Demand, num_dropped: int, block_size: int, window: Window | None) -> int:
    """Blocks that a demand's sequences hold at most at one time.

    num_dropped: leading blocks that the first of them begins without.
    """
    trunk = -(-demand.num_tokens // block_size) - num_dropped
    if window is None:
        own = (-(-total // block_size) - shared // block_size for shared, total in demand.forks)
        return trunk + sum(own)
    # What a fork shares counts as its own, where those ahead of it may have dropped it.
    longest = max([demand.num_tokens, *(total for _, total in demand.forks)])
    gone = window.left_behind(longest, block_size)
    lengths = [trunk]
    for shared, total in demand.forks:
        start = window.left_behind(shared, block_size) + max(0, shared // block_size - gone)
        lengths.append(-(-total // block_size) - start)
    return window.most_held(lengths, block_size)
