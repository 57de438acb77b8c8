"""KV groups: the layers that keep the same of a text, and what they have blocks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.memory import KV, KeptState, PageShare, Window, kept_by


class KVGroup(NamedTuple):
    """Layers whose blocks are given out together, and how many blocks they have.

    Blocks of layers that keep a ``state`` are slots: one holds the states of one sequence.

    share: of pages, that it has with the others: then it has as many blocks as they leave it,
        ``num_blocks`` at most.
    """

    layers: tuple[int, ...]
    num_blocks: int
    num_host_blocks: int = 0
    window: Window | None = None
    state: KeptState | None = None
    share: PageShare | None = None

    @property
    def kept(self) -> KV | Window | KeptState:
        """What the layers keep of a text."""
        return kept_by(self.window) if self.state is None else self.state

    def num_sink_blocks(self, block_size: int) -> int:
        """Blocks of each sequence that its window does not leave behind."""
        return self.kept.sink_blocks(block_size)

    def seqs_that_fit(self, num_tokens: int | None, block_size: int) -> int:
        """Sequences of ``num_tokens``, or in a window of any length, that it holds at one time."""
        return self.kept.seqs_that_fit(self.num_blocks, num_tokens, block_size)

    def most_held(self, num_tokens: int | None, block_size: int, num_seqs: int = 1) -> int:
        """Most blocks that sequences of ``num_tokens`` hold in it."""
        length = self.kept.blocks_of(num_tokens, block_size)
        return self.kept.most_held([length] * num_seqs, block_size)


def layers_by_window(windows: Sequence[int | None]) -> dict[int | None, tuple[int, ...]]:
    """The layers of each KV group, full attention first."""
    distinct = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    return {
        window: tuple(layer for layer, own in enumerate(windows) if own == window)
        for window in distinct
    }
