"""KV groups: the layers that keep the same, and how the KV memory is divided among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import gcd
from typing import Any, NamedTuple

from quire.core.memory import KV, KeptState, PageShare, Window, blocks_in_each, kept_by
from quire.core.protocol import EVERYTHING, Sight


class KVGroup(NamedTuple):
    """Layers whose blocks are given out together, and how many blocks they have.

    Blocks of layers that keep a ``state`` are slots: one holds the states of one sequence.

    share: of pages, that it has with the others: then it has as many blocks as they leave it,
        ``num_blocks`` at most. Where none of them keeps a state, its layers are as many in each
        lane of the memory (``PageShare``).
    """

    layers: tuple[int, ...]
    num_blocks: int
    num_host_blocks: int = 0
    window: Window | None = None
    state: KeptState | None = None
    share: PageShare | None = None

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> KVGroup:
        """As JSON has it."""
        layers, num_blocks, num_host_blocks, window, *later = values
        own = cls(tuple(layers), num_blocks, num_host_blocks, window and Window(*window))
        state, share, *_ = [*later, None, None]  # records were made before there were any
        return own._replace(state=state and KeptState(*state), share=share and PageShare(*share))

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


def sights_of(kv_groups: Sequence[KVGroup], layers: range | None = None) -> tuple[Sight, ...]:
    """Of a model with these KV groups.

    layers: those that are its own, where a draft model has the others.
    """
    kv_groups = [kv_group for kv_group in kv_groups if kv_group.state is None]
    counts = [
        len(kv_group.layers) if layers is None else sum(one in layers for one in kv_group.layers)
        for kv_group in kv_groups
    ]
    own = [(one.kept.sight, n) for one, n in zip(kv_groups, counts, strict=True) if n]
    if all(sight is None for sight, _ in own):
        return EVERYTHING
    return tuple(Sight(n / sum(counts), sight) for sight, n in own)


_FLOAT = 4  # bytes of a state's numbers
_PADDING = 0.04
"""The part of a page that may be lost to a KV group whose blocks do not fill it."""


def shares(
    kv_groups: Sequence[KVGroup], layer_bytes: Sequence[int], block_size: int
) -> list[PageShare]:
    """How KV groups cut pages, of which there are none yet; nothing if they cannot.

    A *unit* is a block of one of the smallest layers in each *lane*: of as many lanes as divide the
    layers of every KV group. A page has as few units as lose little in each of them.

    layer_bytes: of a token's numbers, without scales. The layers of a KV group keep as much each,
        as many times more than the smallest as divide a block's tokens: so a block begins where a
        token does.
    """
    each = [{layer_bytes[layer] for layer in kv_group.layers} for kv_group in kv_groups]
    least = min(map(min, each))
    if any(len(own) > 1 or min(own) % least or block_size % (min(own) // least) for own in each):
        return []
    counts = [len(kv_group.layers) for kv_group in kv_groups]
    lanes = gcd(*counts)
    spans = [n // lanes * (min(own) // least) for n, own in zip(counts, each, strict=True)]
    sizes = (blocks * max(spans) for blocks in count(1))
    units = next(size for size in sizes if all(size % span < _PADDING * size for span in spans))
    return [PageShare(0, units, span) for span in spans]


_MOST_PARTS = 64
"""Units of a block, where states share its memory. Each is counted by itself."""
_ALIGNED = 64  # bytes: units begin where lines of caches do, if blocks do


class KeptBytes(NamedTuple):
    """What blocks take: of each KV group of those that keep tokens, and of a slot for states.

    scales: what of the blocks is scales, as large a part of each. row: of a head's key, and of its
        value, without a scale; 0: these differ, or layers'.
    """

    blocks: tuple[int, ...]
    slot: int
    scales: tuple[int, ...]
    row: int


def shares_with_states(sizes: KeptBytes, block_size: int) -> list[PageShare]:
    """How KV groups cut pages that states share; of pages there are none yet. Nothing if they
    cannot.

    A *unit* is so large a part of a block that the blocks of all KV groups are whole units, and
    slots nearly. A page has as few units as lose little in each KV group.
    """
    numbers = [own - scales for own, scales in zip(sizes.blocks, sizes.scales, strict=True)]
    whole = gcd(*numbers)
    if not sizes.row or not whole or whole % sizes.row:
        return []
    aligned = gcd(whole, _ALIGNED)
    for parts in range(1, _MOST_PARTS + 1):
        unit = whole // parts
        if whole // sizes.row % parts or unit % aligned or unit % _FLOAT:
            continue
        with_scales = sizes.blocks[0] * unit // numbers[0]
        spans = [n // unit for n in numbers]
        slot = -(-sizes.slot // unit)
        full = max(*spans, slot)
        for units in range(full, _MOST_PARTS * full, full):
            kept = units // slot * sizes.slot
            small = (1 - _PADDING) * units
            if kept > small * with_scales and all(units // n * n > small for n in spans):
                lost = (slot * with_scales - sizes.slot) * block_size // with_scales
                return [PageShare(0, units, n) for n in spans] + [PageShare(0, units, slot, lost)]
    return []


def least_blocks(kv_groups: Sequence[KVGroup]) -> int:
    """How many blocks there are for every KV group at the same time."""
    own = [one.share for one in kv_groups if one.share is not None]
    if own:
        return blocks_in_each(own, own[0].pages)
    return min(one.num_blocks for one in kv_groups)


def some_blocks(kv_groups: Sequence[KVGroup], count: int) -> list[tuple[int, ...]]:
    """``count`` blocks in each KV group, at most ``least_blocks``, of which no two are at one
    place in memory.
    """
    found, page = list[tuple[int, ...]](), 0
    for share in (one.share for one in kv_groups):
        if share is None:
            found.append(tuple(range(count)))
            continue
        units, span, each = share.units, share.span, share.per_page
        found.append(tuple((page + i // each) * units + i % each * span for i in range(count)))
        page += share.pages_of(count)
    return found


def divide(
    budget: int, block_bytes: Sequence[int], least: Sequence[int], most: Sequence[int | None]
) -> list[int]:
    """Blocks of each KV group, for ``budget`` bytes; the lists are by KV group.

    least: blocks that the longest sequence needs: given first, if there are bytes for all.
    most: no KV group gets more, the others have it instead; None: no limit.
    Of what is left, all KV groups get the same number of blocks, since a short sequence needs as
    many in each.
    """
    blocks = [0] * len(block_bytes)
    if sum(count * size for count, size in zip(least, block_bytes, strict=True)) <= budget:
        blocks = list(least)
    left = budget - sum(count * size for count, size in zip(blocks, block_bytes, strict=True))
    room = [None if cap is None else cap - has for cap, has in zip(most, blocks, strict=True)]
    by_room = sorted(range(len(blocks)), key=lambda i: (room[i] is None, room[i] or 0))
    for index, kv_group in enumerate(by_room):
        share = left // sum(block_bytes[i] for i in by_room[index:])
        limit = room[kv_group]
        more = share if limit is None else min(share, limit)
        blocks[kv_group] += more
        left -= more * block_bytes[kv_group]
    return blocks
