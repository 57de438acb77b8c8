"""KV groups in bytes: how large their blocks are, and how they divide memory or share its pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, lcm
from typing import Protocol

from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.memory import PageShare, blocks_in_each

_FLOAT = 4  # bytes of a scale, and of a state's numbers
_PADDING = 0.04
"""The part of a page that may be lost to a KV group whose blocks do not fill it."""
_MOST_PARTS = 64
"""Units of a block, where states share its memory. Each is counted by itself."""
_ALIGNED = 64  # bytes: units begin where lines of caches do, if blocks do


class LayerBytes(Protocol):
    """What layers keep, in bytes, by layer."""

    @property
    def token_bytes(self) -> Sequence[int]:
        """Of a token's keys and values."""
        ...

    @property
    def scale_bytes(self) -> Sequence[int]:
        """What of ``token_bytes`` is scales; nothing at all where no layer has some."""
        ...

    @property
    def rows(self) -> Sequence[tuple[int, ...]]:
        """Of a head's key, and its value, if that is kept beside it, without scales; nothing at all
        where that is not known.
        """
        ...

    @property
    def state_bytes(self) -> Sequence[int]:
        """Of a sequence's state; nothing at all where no layer has one."""
        ...

    @property
    def draft_bytes(self) -> Sequence[int]:
        """Of what a state keeps of each draft; as state_bytes."""
        ...


class Planes:
    """The pieces of memory that pages are cut of: one, or two, of keys and of values, where these
    are of other sizes, but as many times larger in all layers.

    In a plane a unit is of whole rows. Scales lie beside it, one for each row.

    parts: bytes of each plane, in so many of all; nothing: these layers cannot have them in common.
    step: bytes, over all planes, that units are multiples of.
    """

    def __init__(self, rows: Iterable[tuple[int, ...]], scaled: Iterable[tuple[int, ...]]) -> None:
        """rows: as ``LayerBytes`` has them, of layers that keep tokens. scaled: with scales."""
        forms, self._scaled = {*map(_form, rows)}, {*map(_form, scaled)}
        whole = {tuple(size // gcd(*form) for size in form) for form in forms} or {(1,)}
        whole_words = len(forms) == 1 or not any(size % _FLOAT for form in forms for size in form)
        self.parts = whole.pop() if len(whole) == 1 and whole_words else ()
        self.step = lcm(*map(sum, forms))

    @classmethod
    def of(cls, kv_groups: Sequence[KVGroup], kept: LayerBytes) -> Planes:
        layers = [layer for one in kv_groups if one.state is None for layer in one.layers]
        rows, scales = (kept.rows[layer] for layer in layers if kept.rows), kept.scale_bytes
        return cls(rows, (kept.rows[layer] for layer in layers if scales and scales[layer]))

    def with_scales(self, unit: int) -> int:
        """Bytes of a unit and its scales, of which it has some for each size of rows."""
        return unit + sum(_FLOAT * len(form) * unit // sum(form) for form in self._scaled)


def _form(rows: tuple[int, ...]) -> tuple[int, ...]:
    return rows[:1] if len({*rows}) == 1 else rows


def bytes_of_blocks(limits: EngineLimits, kept: LayerBytes) -> list[int]:
    """Of a block in each KV group."""
    return [_block_bytes(one, kept, limits.block_size) for one in limits.kv_groups]


def bytes_of_pool(limits: EngineLimits, kept: LayerBytes) -> int:
    """Of the whole pool on the device."""
    if limits.share is not None:
        return limits.share.num_units * bytes_of_unit(limits, kept)
    sizes = bytes_of_blocks(limits, kept)
    return sum(one.num_blocks * each for one, each in zip(limits.kv_groups, sizes, strict=True))


def bytes_of_unit(limits: EngineLimits, kept: LayerBytes) -> int:
    """Of a unit of pages: its numbers, and the scales of each form that it may have."""
    first, share, size = limits.kv_groups[0], limits.share, limits.block_size
    assert share is not None, "all of them share"
    numbers = _block_bytes(first, kept, size) - _scale_bytes(first, kept, size)
    return Planes.of(limits.kv_groups, kept).with_scales(numbers // share.span)


def _block_bytes(kv_group: KVGroup, kept: LayerBytes, block_size: int) -> int:
    """Of a block: keys and values of tokens, or states, of its layers."""
    if kv_group.state is None:
        return block_size * sum(kept.token_bytes[layer] for layer in kv_group.layers)
    states, drafts = kept.state_bytes, kept.draft_bytes
    return sum(states[i] + kv_group.state.drafts * drafts[i] for i in kv_group.layers)


def _scale_bytes(kv_group: KVGroup, kept: LayerBytes, block_size: int) -> int:
    """What of a block is scales."""
    if kv_group.state is not None or not kept.scale_bytes:
        return 0
    return block_size * sum(kept.scale_bytes[layer] for layer in kv_group.layers)


def shares(kv_groups: Sequence[KVGroup], kept: LayerBytes, block_size: int) -> list[PageShare]:
    """How KV groups cut pages, of which there are none yet; nothing if they cannot.

    A *unit* is so large a part of a block that the blocks of all KV groups are whole units, and
    slots for states nearly. A page has as few units as lose little in each KV group.
    """
    sizes = [_block_bytes(one, kept, block_size) for one in kv_groups]
    numbers = [
        size - _scale_bytes(one, kept, block_size)
        for one, size in zip(kv_groups, sizes, strict=True)
        if one.state is None
    ]
    slot, whole, planes = sum(sizes[len(numbers) :]), gcd(*numbers), Planes.of(kv_groups, kept)
    if not whole or len(planes.parts) not in ((1,) if slot else (1, 2)):
        return []
    step = lcm(planes.step, gcd(whole, _ALIGNED), _FLOAT if slot else 1)
    for parts in range(1, _MOST_PARTS + 1):
        unit = whole // parts
        if whole % parts or unit % step:
            continue
        with_scales = planes.with_scales(unit)
        spans = [n // unit for n in numbers] + ([-(-slot // unit)] if slot else [])
        for units in range(max(spans), _MOST_PARTS * max(spans), max(spans)):
            small = (1 - _PADDING) * units
            if slot and units // spans[-1] * slot <= small * with_scales:
                continue
            if all(units // span * span > small for span in spans):
                lost = (spans[-1] * with_scales - slot) * block_size // with_scales
                own = [PageShare(0, units, span, unit_bytes=unit) for span in spans]
                return [*own[:-1], own[-1]._replace(lost=lost if slot else 0)]
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
