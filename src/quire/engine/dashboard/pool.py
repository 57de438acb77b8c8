"""The pool in figures: what its slots do, what is found in it, what regions would take instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.memory import PoolView
from quire.core.scheduling import Scheduler
from quire.engine.dashboard.holders import first_blocks, span_of


@dataclass(frozen=True)
class KVGroupPool:
    """first_block: its number among all blocks. num_blocks: the most that it can have. window:
    tokens that its layers see; null: all.

    layers, draft_layers: of the model, and of the one that drafts for it; null: not known.
    keeps_states: a block holds the states of one sequence, or a snapshot of them.
    span: how many numbers a block takes, where KV groups share pages: units of memory, which are
        all of one size. held_blocks, cached_blocks: as of the whole pool.
    """

    first_block: int
    num_blocks: int
    window: int | None
    layers: int | None
    draft_layers: int | None
    keeps_states: bool
    span: int
    held_blocks: int
    cached_blocks: int


@dataclass(frozen=True)
class Contiguous:
    """Blocks that those who run now would need in regions reserved for each of their outputs.

    longest: for as many tokens as each may come to have. max_model_len: for as many as any may.
    """

    longest: int
    max_model_len: int | None


@dataclass(frozen=True)
class Pool:
    """slots: every slot for a token by what it is doing; they sum to the capacity.

    held_blocks: by requests or sessions. cached_blocks: free, but their content can be found. The
    others are blank. Where KV groups share pages, all of these count units.
    """

    block_size: int
    num_blocks: int
    held_blocks: int
    cached_blocks: int
    blank_blocks: int
    slots: dict[str, int]
    kv_groups: list[KVGroupPool]
    contiguous: Contiguous


@dataclass(frozen=True)
class PrefixCacheFigures:
    """Tokens of prompts, when they were first let in.

    Found, fetched from beyond the pool, or missed: evicted before, at the end of a prompt in a
    block that was not full, there without a snapshot of the state after them, or never there.
    """

    enabled: bool
    queried_tokens: int
    found_tokens: int
    fetched_tokens: int
    evicted_tokens: int
    tail_tokens: int
    stateless_tokens: int
    new_tokens: int


def pool_figures(
    scheduler: Scheduler, max_model_len: int | None, kv_layers: Sequence[tuple[int, int]]
) -> Pool:
    """kv_layers: of each KV group, as ``KVGroupPool`` has them; empty: not known."""
    allocator = scheduler.allocator
    pools = allocator.views()
    firsts = first_blocks(pools)
    total = firsts.pop()
    layers_of: Sequence[tuple[int | None, int | None]] = kv_layers or [(None, None)] * len(pools)
    held = sum(one.num_held * span_of(one) for one in pools)
    cached = sum(one.num_cached * span_of(one) for one in pools)
    return Pool(
        block_size=allocator.block_size,
        num_blocks=total,
        held_blocks=held,
        cached_blocks=cached,
        blank_blocks=total - held - cached,
        slots=allocator.usage()._asdict(),
        kv_groups=[
            KVGroupPool(
                first,
                one.num_blocks,
                one.window and one.window.tokens,
                *layers,
                one.keeps_states,
                span_of(one),
                one.num_held,
                one.num_cached,
            )
            for first, one, layers in zip(firsts, pools, layers_of, strict=True)
        ],
        contiguous=_contiguous(scheduler, pools, max_model_len),
    )


def prefix_cache(scheduler: Scheduler) -> PrefixCacheFigures:
    stats = scheduler.stats
    known = (
        stats.prefix_hits,
        stats.prefix_fetched,
        stats.prefix_evicted,
        stats.prefix_tails,
        stats.prefix_stateless,
    )
    return PrefixCacheFigures(
        scheduler.prefix_cache is not None,
        stats.prefix_queries,
        *known,
        new_tokens=max(0, stats.prefix_queries - sum(known)),
    )


def _contiguous(
    scheduler: Scheduler, pools: Sequence[PoolView], max_model_len: int | None
) -> Contiguous:
    """Every layer would keep all tokens; and of a state there is one for each text, as here."""
    size, running = scheduler.allocator.block_size, scheduler.running
    each = sum(span_of(one) for one in pools if not one.keeps_states)
    branches = sum(group.request.params.width for group in running)
    states = branches * sum(span_of(one) for one in pools if one.keeps_states)
    longest = sum(
        group.request.params.width * -(-group.request.longest // size) for group in running
    )
    if max_model_len is None:
        return Contiguous(longest * each + states, None)
    return Contiguous(longest * each + states, branches * -(-max_model_len // size) * each + states)
