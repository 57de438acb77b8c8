"""What a sliding window means in blocks: which are left behind, and how many are ever held."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.core.memory.values import Demand


class Window(NamedTuple):
    """Each token sees itself and the ``tokens - 1`` before it, and the first ``sinks`` of its text.

    step_tokens: the most tokens that one step computes, over all sequences.
    """

    tokens: int
    step_tokens: int
    sinks: int = 0

    def sink_blocks(self, block_size: int) -> int:
        """Leading blocks that every token sees, and so are never given back."""
        return -(-self.sinks // block_size)

    def dropped(self, num_tokens: int, block_size: int) -> int:
        """Blocks after the sinks' that no token from position ``num_tokens`` on sees."""
        return max(0, self.left_behind(num_tokens, block_size) - self.sink_blocks(block_size))

    def left_behind(self, num_tokens: int, block_size: int) -> int:
        """Leading blocks that end before the window of position ``num_tokens``.

        The next token sees position num_tokens - tokens + 1 and those after it.
        """
        return max(0, num_tokens - self.tokens + 1) // block_size

    def seq_blocks(self, block_size: int) -> int:
        """Most blocks of a sequence, up to the first block of what a step adds to it.

        The window less one token, and one new token, touch at most one block more than those
        tokens fill; and where a step ends inside a block, that is one more. Beside the sinks'.
        """
        return self.sink_blocks(block_size) + -(-(self.tokens - 1) // block_size) + 2

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

    num_dropped: blocks that the first of them begins without.
    """
    trunk = -(-demand.num_tokens // block_size) - num_dropped
    if window is None:
        return trunk + sum(
            -(-total // block_size) - shared // block_size for shared, total in demand.forks
        )
    # What a fork shares counts as its own, where those ahead of it may have dropped it.
    longest = max([demand.num_tokens, *(total for _, total in demand.forks)])
    sinks = window.sink_blocks(block_size)
    gone = max(sinks, window.left_behind(longest, block_size))
    lengths = [trunk]
    for shared, total in demand.forks:
        kept = min(sinks, shared // block_size) + max(0, shared // block_size - gone)
        own = -(-total // block_size) - window.dropped(shared, block_size) - kept
        lengths.append(own)
    return window.most_held(lengths, block_size)
