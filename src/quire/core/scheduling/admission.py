"""Who is refused at once, and how the first in the queue gets its blocks: new ones, those on the
host, or those it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Protocol

from quire.core.errors import ContextLengthError, RequestError
from quire.core.memory import Demand, Fit, KVAllocator, When
from quire.core.protocol.decision import Decision, Verdict
from quire.core.protocol.request import Request
from quire.core.protocol.step import Step
from quire.core.scheduling.decoding import LiveGroups
from quire.core.scheduling.preemption import Shortage
from quire.core.scheduling.prefix_cache import PrefixCache
from quire.core.scheduling.scores import ScoredBlocks
from quire.core.scheduling.sequence import SequenceGroup, Status


@dataclass
class SchedulerStats:
    """Decisions by verdict, and where the tokens of prompts were found or missed.

    Prompts are looked up in the prefix cache when they are first admitted. Of
    ``prefix_queries`` tokens, ``prefix_hits`` were there; ``prefix_fetched`` were fetched from
    a source; ``prefix_evicted`` had been there, until their blocks were needed;
    ``prefix_tails`` stood in a prompt's last, partly filled block, which is never kept;
    ``prefix_stateless`` had blocks, but no snapshot of the state after them. The rest was new.
    """

    decisions: Counter[str] = field(default_factory=Counter)
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_fetched: int = 0
    prefix_evicted: int = 0
    prefix_tails: int = 0
    prefix_stateless: int = 0

    @property
    def num_preemptions(self) -> int:
        return self.decisions["swap"] + self.decisions["recompute"]


@dataclass(frozen=True)
class BatchLimits:
    """What runs at once, in one step.

    max_num_batched_tokens: most tokens that a step computes.
    max_adapters: most different ones that run at once (see ``AdapterSlots``). None: any number.
    whole_prompts: each is computed in one step, which must have room for the longest.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_adapters: int | None = None
    whole_prompts: bool = False

    def refuse_too_wide(self, request: Request) -> None:
        """RequestError where all branches of the request cannot run at once."""
        width, tokens = request.params.width, self.max_num_batched_tokens
        if width > self.max_num_seqs:
            raise RequestError(
                "n, best_of and beam_width must be at most max_num_seqs, "
                f"{self.max_num_seqs}; got {width}",
                "n",
            )
        if request.params.use_beam_search and width > tokens:
            raise RequestError(
                "beams advance together: beam_width must be at most max_num_batched_tokens, "
                f"{tokens}; got {width}",
                "beam_width",
            )


class LookupWatcher(Protocol):
    """Learns what the prefix cache had of each prompt."""

    def looked_up(self, group: SequenceGroup, cached: int, stateless: int) -> None:
        """The group is let in for the first time, and ``cached`` of its tokens were found.

        stateless: further ones would have been, if a snapshot were there.
        """

    def cleared(self) -> None:
        """Nothing can be found of what has been computed until now."""


def too_many(width: int, spare: int) -> Shortage:
    """For ``width`` sequences, beside those that run."""
    why, remedy = "max_num_seqs sequences are running", "a larger max_num_seqs"
    return Shortage(why, width, spare, remedy, "sequences")


class Admission:
    """Lets groups in: admitted, brought back from the host, or taken as they are."""

    def __init__(
        self,
        allocator: KVAllocator,
        live: LiveGroups,
        scored: ScoredBlocks,
        cache: PrefixCache | None,
    ) -> None:
        self.stats = SchedulerStats()
        self.watcher: LookupWatcher | None = None
        self._allocator = allocator
        self._unit = allocator.unit
        self._live = live
        self._scored = scored
        self._cache = cache

    def let_in(self, group: SequenceGroup, running: int, step: Step) -> Shortage | None:
        """Give the group its blocks, beside ``running`` sequences; or say what is missing."""
        if group.status is Status.WAITING:
            return self._admit(group, running, step)
        if group.status is Status.SWAPPED:
            return self._resume(group, running, step)
        why = "the blocks of its session are here"
        step.decisions.append(Decision(Verdict.ADMIT, group.request.request_id, why))
        group.status = Status.RUNNING
        return None

    def _resume(self, group: SequenceGroup, running: int, step: Step) -> Shortage | None:
        headroom = running + group.width if running else 0
        moves = self._allocator.swap_in(group.tables(), headroom)
        if moves is None:
            needed = self._allocator.blocks_to_swap_in(group.tables(), headroom)
            why, free = f"not enough free {self._unit} to swap in", self._allocator.num_free_blocks
            return Shortage(why, needed, free, unit=self._unit)
        step.moves.extend(moves)
        group.status = Status.RUNNING
        group.memory.swapped_blocks += len(moves)
        if self._cache is not None:
            self._cache.restored(group)
        why = f"{len(moves)} blocks swapped in"
        step.decisions.append(Decision(Verdict.RESUME, group.request.request_id, why))
        return None

    def _admit(self, group: SequenceGroup, running: int, step: Step) -> Shortage | None:
        trunk, cache = group.branches[0], self._cache
        # Every running sequence may take one more block before any gives one back.
        demand = self._demand(group, headroom=running)
        fit = self._allocator.fit(demand)
        cached = None
        if cache is not None and fit.when is When.NOW:
            cached = self._allocator.admit(trunk.seq_id, cache.widen(group, demand))
        if cached is None:  # under a window, what is fetched may need more than what is computed
            cached = self._allocator.admit(trunk.seq_id, demand)
        if cached is None:
            why = f"not enough free {self._unit}"
            return Shortage(why, fit.needed, fit.free, unit=self._unit)
        fetches = [] if cache is None else cache.admitted(group, cached)
        step.moves.extend(fetches)
        why = f"{cached} of {demand.num_tokens} tokens cached"
        if fetches:
            why += f", {cached - fit.cached} of them in {len(fetches)} blocks to be fetched"
        if fit.stateless:
            why += f", {fit.stateless} more have blocks but no snapshot of their state"
        step.decisions.append(
            Decision(
                Verdict.ADMIT, group.request.request_id, why, fit.needed, fit.free, unit=self._unit
            )
        )
        trunk.num_computed = cached
        if cache is not None and cache.places is not None:
            known, marks = cached + fit.stateless, [end for end, _ in group.request.keep]
            trunk.places = cache.places.of(demand.num_tokens, cached, known, marks)
        if group.scores is not None and not group.expanded:
            self._scored.reuse(group.scores, trunk.block_hashes, cached)
        group.status = Status.RUNNING
        self._live.wake_forks(group, trunk)  # the cached tokens may end where a branch forks off
        if not group.ever_admitted:
            group.ever_admitted = True
            group.memory.cached_tokens = cached
            group.memory.fetched_tokens = cached - fit.cached
            if cache is not None:
                self._count_prefix(demand, fit, cached)
            if self.watcher is not None:
                self.watcher.looked_up(group, cached, fit.stateless)
        return None

    def fit(self, group: SequenceGroup) -> Fit:
        """What a group that waits would find and take now, without those who run beside it."""
        return self._allocator.fit(self._demand(group, headroom=0))

    def _demand(self, group: SequenceGroup, headroom: int) -> Demand:
        trunk, request = group.branches[0], group.request
        hashes: list[bytes] = []
        most_cached = None
        if self._cache is not None and not request.needs_all_rows:
            trunk.hash_blocks(self._allocator.block_size)
            hashes = trunk.block_hashes
            pause = group.next_fork(trunk)
            if pause is not None:  # a hit must not skip the fork
                hashes = hashes[: pause // self._allocator.block_size]
            if group.scores is not None and not group.expanded:
                hashes = hashes[: self._scored.find(hashes, group.scores.num_top)]
                # The next token's row must be computed: the scores of the block's first token.
                most_cached = max(0, len(hashes) * self._allocator.block_size - 1)
        forks = [(b.fork_at, len(b.token_ids)) for b in group.branches[1:]]
        tokens = len(trunk.token_ids)
        longest = request.longest
        return Demand(tokens, hashes, forks, headroom, group.width, longest, most_cached)

    def _count_prefix(self, demand: Demand, fit: Fit, cached: int) -> None:
        stats = self.stats
        stats.prefix_queries += demand.num_tokens
        stats.prefix_hits += fit.cached
        stats.prefix_fetched += cached - fit.cached
        stats.prefix_evicted += max(0, fit.evicted - (cached - fit.cached))
        full = len(demand.block_hashes) * self._allocator.block_size
        stats.prefix_stateless += fit.stateless
        stats.prefix_tails += max(0, demand.num_tokens - 1 - full)


def fitted(request: Request, known: int, allocator: KVAllocator) -> Request:
    """The request; without a limit, with as many tokens as the pool can hold after ``known`` ones.

    RequestError where that is not one, or fewer than its limit.
    """
    least, most = max(request.params.min_tokens, 1), request.max_tokens
    if request.params.max_tokens is None and request.params.width > 1 and least < most:
        while least < most:  # it can hold ``least``, or nothing at all
            middle = (least + most + 1) // 2
            if _fits(replace(request, max_tokens=middle), known, allocator):
                least = middle
            else:
                most = middle - 1
        request = replace(request, max_tokens=least)
    _refuse_too_long(request, known, allocator)
    return request


def _fits(request: Request, known: int, allocator: KVAllocator) -> bool:
    try:
        _refuse_too_long(request, known, allocator)
    except RequestError:
        return False
    return True


def _refuse_too_long(request: Request, known: int, allocator: KVAllocator) -> None:
    """RequestError where the pool cannot hold ``known`` tokens and what is generated."""
    width, longest = request.params.width, known + max(request.max_tokens, 1) - 1
    forks = [(known, longest)] * (width - 1)

    whole = Demand(longest, (), forks, 0, width, longest)
    if allocator.fit(whole).when is not When.NEVER:
        return

    def never(tokens: int) -> bool:
        return allocator.fit(Demand(tokens, longest=tokens)).when is When.NEVER

    for name, what, demand in (
        ("prompt", f"a prompt of {known} tokens", Demand(known, longest=known)),
        ("max_tokens", f"{longest} tokens", Demand(longest, longest=longest)),
        ("n", f"{width} branches", whole),
    ):
        fit = allocator.fit(demand)
        if fit.when is When.NEVER:
            units = (
                "pages"
                if allocator.unit == "pages"
                else f"KV blocks of {allocator.block_size} tokens"
            )
            text = f"{what} can never fit: {fit.needed} {units} needed, the pool has {fit.capacity}"
            if name == "prompt":
                room = bisect_left(range(1, known + 1), True, key=never)
                raise ContextLengthError(text, name, known, room, room)
            raise RequestError(text, name)
