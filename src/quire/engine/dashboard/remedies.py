"""The setting, and its value, with which a request would not wait: from the scheduler's figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.core.memory import PageShare, PoolView, blocks_in_each
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sequence import Status

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
_LEAST = 4  # of a unit, from which it is used: rounded up, a value is a quarter more at most


class PoolBytes(NamedTuple):
    """Bytes. total: of the pool. block: of one block in every KV group together."""

    total: int
    block: int


class Need(NamedTuple):
    """What would have to be there for one that waits and all before it, at most.

    blocks: beside those that are held, with one for each running sequence to grow into.
    sequences: with those that run. tokens: of a step, until the last of them has some, too.
    """

    blocks: int
    sequences: int
    tokens: int


def blocks_of(group: SequenceGroup, block_size: int) -> int:
    """Blocks that the group takes to begin, at most: nothing of it may be found or shared."""
    if group.status is Status.RESIDENT:  # it holds those of what is computed
        return sum(-(-branch.num_pending // block_size) + 1 for branch in group.branches)
    blocks = sum(-(-len(branch.token_ids) // block_size) for branch in group.branches)
    return blocks + group.width if group.status is Status.SWAPPED else blocks  # each goes on


def needs(scheduler: Scheduler) -> Iterator[Need]:
    """What each waiting request needs, in the queue's order."""
    size, whole = scheduler.allocator.block_size, scheduler.batch.whole_prompts
    blocks = sequences = scheduler.num_running_seqs
    tokens = sum(map(_pending, scheduler.running))
    for group in scheduler.waiting:
        blocks += blocks_of(group, size)
        sequences += group.width
        yield Need(blocks, sequences, tokens + (_pending(group) if whole else 1))
        blocks += group.width
        tokens += _pending(group)


def _pending(group: SequenceGroup) -> int:
    return sum(branch.num_pending for branch in group.branches)


def free_blocks(scheduler: Scheduler) -> int | None:
    """Free or cached blocks in the KV group that has fewest; None: there is no pool."""
    pools = scheduler.allocator.views()
    if shares := _shares_of_tokens(pools):
        return blocks_in_each(shares, scheduler.allocator.num_free_blocks)
    return min((pool.num_blocks - pool.num_held for pool in pools), default=None)


def _shares_of_tokens(pools: Sequence[PoolView]) -> list[PageShare]:
    """Of KV groups that share pages and keep tokens, of which texts need as many blocks."""
    return [one.share for one in pools if one.share is not None and not one.keeps_states]


def remedy_of(
    scheduler: Scheduler, group: SequenceGroup, need: Need, pool: PoolBytes | None
) -> str | None:
    """Flags with values that are enough for the group to begin now; None: no flag is in its way."""
    batch, found = scheduler.batch, list[str]()
    if need.sequences > batch.max_num_seqs:
        found.append(_instead("max-num-seqs", need.sequences, batch.max_num_seqs))
    if slots := _slots(scheduler, group):
        found.append(_instead("max-loras", slots, scheduler.adapters.most))
    free = free_blocks(scheduler)
    if free is not None and need.blocks > free:
        found.append(larger_pool(scheduler, need.blocks - free, pool))
    if not found and need.tokens > batch.max_num_batched_tokens:
        found.append(_instead("max-num-batched-tokens", need.tokens, batch.max_num_batched_tokens))
    return "; ".join(found) or None


def _slots(scheduler: Scheduler, group: SequenceGroup) -> int:
    """Different adapters that would have to run at once for it to begin; 0: there are enough."""
    slots, adapter = scheduler.adapters, group.request.adapter
    if slots.most is None or adapter is None or group.begun or adapter not in slots.wanted:
        return 0
    before = slots.wanted[: slots.wanted.index(adapter) + 1]
    needed = len({*slots.in_use, *before})
    return needed if needed > slots.most else 0


def larger_pool(scheduler: Scheduler, lacking: int, pool: PoolBytes | None) -> str:
    """The flag, and its value, with which the pool has ``lacking`` blocks more."""
    flag = "--kv-cache-memory-bytes"
    if pool is None:
        views = scheduler.allocator.views()
        now = sum(view.num_blocks for view in views)
        return f"{flag}: room for {now + lacking * len(views):,} blocks instead of {now:,}"
    wanted = pool.total + lacking * pool.block
    if shares := _shares_of_tokens(scheduler.allocator.views()):
        pages = sum(one.pages_of(lacking) + 1 for one in shares)  # some of each is in use
        wanted = pool.total + pages * pool.total // shares[0].pages
    unit, size = next(one for one in _UNITS if wanted >= _LEAST * one[1] or one[1] == 1)
    return f"{flag}: {-(-wanted // size):,} {unit} instead of {pool.total / size:,.4g}"


def _instead(flag: str, value: int, now: int | None) -> str:
    return f"--{flag}: {value:,} instead of {now:,}"
