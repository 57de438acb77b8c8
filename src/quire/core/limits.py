"""What holds for an engine from its start to its end, in one record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup, LayerBytes, Planes
from quire.core.memory import (
    BlockHash,
    BlockSource,
    KVAllocator,
    LayeredAllocator,
    PagedAllocator,
    PageShare,
    SharedPages,
    SharedPool,
    SnapshotStops,
    StateAllocator,
)
from quire.core.protocol import PreemptionMode, RecoveryCosts, SchedulingPolicy
from quire.core.scheduling import (
    BatchLimits,
    Caching,
    Queueing,
    Recovery,
    Scheduler,
)


@dataclass(frozen=True)
class EngineLimits:
    """A config, applied to a model. Scheduler, GPU runner and simulator are made from it.

    KV groups: the pool; until ``fill`` has found its size, a block in each KV group. None of them:
        the model keeps no keys and values, and reads each text whole, in one step.
    max_model_len: the longest text, prompt and output; None: a window lets texts go on for ever.
    """

    kv_groups: tuple[KVGroup, ...]
    block_size: int
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    preemption_mode: str
    scheduling_policy: str
    attention_sinks: int
    max_num_sessions: int
    max_sessions_per_client: int
    max_queue_time: float | None
    max_loras: int  # 0: there are no adapters

    def values(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> EngineLimits:
        """Of what ``values`` gave. ConfigError if it is something else."""
        try:
            groups = map(KVGroup.of_values, values["kv_groups"])
            own = {**values, "kv_groups": tuple(groups)}
            own.pop("kv_events", None)  # records have had it
            return cls(**own)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"these are not the limits of an engine: {error}") from None

    def with_blocks(self, num_blocks: int, num_host_blocks: int = 0) -> EngineLimits:
        """The same with this number of blocks of its own in each KV group."""
        kv_groups = (
            kv_group._replace(num_blocks=num_blocks, num_host_blocks=num_host_blocks, share=None)
            for kv_group in self.kv_groups
        )
        return replace(self, kv_groups=tuple(kv_groups))

    @property
    def num_blocks(self) -> int:
        """Over all KV groups; of those that share pages, units."""
        if self.share is not None:
            return self.share.num_units
        return sum(kv_group.num_blocks for kv_group in self.kv_groups)

    @property
    def share(self) -> PageShare | None:
        """That of the first KV group, where all of them share pages."""
        return self.kv_groups[0].share if self.kv_groups else None

    @property
    def num_host_blocks(self) -> int:
        """Over all KV groups."""
        return sum(kv_group.num_host_blocks for kv_group in self.kv_groups)

    @property
    def states(self) -> KVGroup | None:
        """The KV group, which is the last, whose layers keep a state of each sequence."""
        last = self.kv_groups[-1] if self.kv_groups else None
        return last if last is not None and last.state is not None else None

    def block_bytes(self, kept: LayerBytes) -> list[int]:
        """Of a block in each KV group."""
        return [one.block_bytes(kept, self.block_size) for one in self.kv_groups]

    def pool_bytes(self, kept: LayerBytes) -> int:
        """Of the whole pool on the device."""
        if self.share is not None:
            return self.share.num_units * self.unit_bytes(kept)
        sizes = self.block_bytes(kept)
        return sum(one.num_blocks * each for one, each in zip(self.kv_groups, sizes, strict=True))

    def unit_bytes(self, kept: LayerBytes) -> int:
        """Of a unit of pages: its numbers, and the scales of each form that it may have."""
        first, share = self.kv_groups[0], self.share
        assert share is not None, "all of them share"
        whole, scales = (n(kept, self.block_size) for n in (first.block_bytes, first.scale_bytes))
        return Planes.of(self.kv_groups, kept).with_scales((whole - scales) // share.span)

    def pages_held(self, num_tokens: int | None, num_seqs: int) -> int:
        """Most pages that sequences of ``num_tokens`` hold, where KV groups share them."""
        size = self.block_size
        return sum(
            one.share.pages_of(one.most_held(num_tokens, size, num_seqs))
            for one in self.kv_groups
            if one.share is not None
        )

    def seqs_that_fit(self, num_tokens: int | None) -> int:
        """Sequences of ``num_tokens``, or in a window of any length, that there is room for."""
        size, share = self.block_size, self.share
        if share is None:
            return min(one.seqs_that_fit(num_tokens, size) for one in self.kv_groups)
        most = min(one.seqs_that_fit(num_tokens, size) for one in self.kv_groups)
        numbers = range(1, most + 1)
        return bisect_right(numbers, share.pages, key=lambda n: self.pages_held(num_tokens, n))

    def allocator(self) -> KVAllocator:
        """An empty pool."""
        size, share, pages = self.block_size, self.share, None
        if share is not None:
            pages = SharedPages(share.pages, share.units)
        paged, states = list[PagedAllocator](), None
        for one in self.kv_groups:
            counts, pool = (one.num_blocks, size, one.num_host_blocks), None
            if pages is not None and one.share is not None:
                pool = SharedPool(pages, one.share.span, one.share.lost)
            if one.state is None:
                paged.append(PagedAllocator(*counts, one.window, pool))
            else:
                states = StateAllocator(*counts, one.state, _are_in(paged), pool)
        if pages is None and states is None and len(paged) == 1:
            return paged[0]
        return LayeredAllocator(size, paged, states, pages)

    def scheduler(self, costs: RecoveryCosts, source: BlockSource | None = None) -> Scheduler:
        """A scheduler over an empty pool. ``source``: of blocks that the pool does not have."""
        batch = BatchLimits(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            max_adapters=self.max_loras or None,
            whole_prompts=not self.kv_groups,
        )
        states = self.states
        stops = None
        if states is not None and states.state is not None:
            stops = SnapshotStops(states.state.every, self.block_size, states.state.decoding)
        caching = Caching(source, stops)
        return Scheduler(
            self.allocator(),
            batch,
            Queueing(SchedulingPolicy(self.scheduling_policy), self.max_queue_time),
            Recovery(PreemptionMode(self.preemption_mode), costs),
            caching if self.enable_prefix_caching else None,
        )


def _are_in(paged: Sequence[PagedAllocator]) -> Callable[[BlockHash], bool]:
    """Whether blocks of that name are there, if any are kept."""
    if not paged:
        return lambda name: True
    return lambda name: paged[0].locate(name) is not None
