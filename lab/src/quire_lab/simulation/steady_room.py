"""Whether branches that only decode have room for their next steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from quire.core.limits import EngineLimits
from quire.core.memory import KVAllocator, LayeredAllocator
from quire.core.memory.layered import GroupAllocator
from quire_lab.contiguous import PAGED, name_of


class SteadyRoom:
    """What an allocator has for branches of which each takes a block in every KV group at a time.

    Whatever is answered is sure, and no is answered where it is not.

    is_named: blocks can be found, and states are copied, to be found, too.
    slots_of_token: of the pool, over all KV groups.
    """

    def __init__(self, allocator: KVAllocator, limits: EngineLimits, *, is_named: bool) -> None:
        self.is_paged = name_of(limits) == PAGED
        self._allocator = allocator
        groups: tuple[GroupAllocator, ...]
        if isinstance(allocator, LayeredAllocator):
            groups = allocator.kv_groups
        else:  # of one KV group, or regions, of which nothing is asked
            groups = (cast(GroupAllocator, allocator),)
        self._states = groups[-1] if limits.states is not None else None
        self._growing = groups[:-1] if self._states is not None else groups
        self._shares_pages = limits.share is not None
        self._is_named = is_named
        growing = [one for one in limits.kv_groups if one.state is None]
        self.slots_of_token = sum(1 if one.share is None else one.share.span for one in growing)

    @property
    def copies_states(self) -> bool:
        return self._is_named and self._states is not None

    def must_copy(self, seq_id: int) -> bool:
        """Whether a sequence's state can be found, or is another's too, before it is written."""
        assert self._states is not None, "there are some"
        pool, (slot,) = self._states.device, self._states.table(seq_id).block_ids
        return pool.content(slot) is not None or pool.ref_counts[slot] > 1

    def takes_only(self, count: int, new_tokens: Mapping[int, int]) -> bool:
        """Whether these take so many blocks in each KV group, and copy none."""
        if self._states is not None and self._states.blocks_to_append(new_tokens):
            return False
        return all(one.blocks_to_append(new_tokens) == count for one in self._growing)

    def is_sure(self, count: int) -> bool:
        """Whether there are so many blocks in each KV group, and slots for as many copies."""
        if not self.is_paged:
            return False
        if self._shares_pages:  # each may take a page
            kinds = len(self._growing) + self.copies_states
            return count * kinds <= self._allocator.num_free_blocks
        return all(count <= one.device.num_free for one in self._growing)

    def has(self, new_tokens: Mapping[int, int]) -> bool:
        """Whether there is room for all of these, one after the other."""
        if not self.is_paged:
            return False
        each = [one.blocks_to_append(new_tokens) for one in self._growing]
        if not self._shares_pages:
            pairs = zip(each, self._growing, strict=True)
            return all(count <= one.device.num_free for count, one in pairs)
        free = self._allocator.num_free_blocks
        if not self._is_named:  # what is free on a page that is taken goes first
            return self._allocator.blocks_to_append(new_tokens) <= free
        return sum(each) + self.copies_states * len(new_tokens) <= free
