"""Why prompts were not found in the prefix cache, by what their clients sent before."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import NamedTuple

from quire.core.protocol import Adapter, Request
from quire.core.scheduling import Capability, Hooks, Scheduler, SequenceGroup
from quire.core.scheduling.sequence import MemoryStory, Sequence

Owner = tuple[str, str]  # a client, and the salt of its cache
_WIDTH = 4  # bytes of a token
_MOST_BYTES = 16 * 2**20  # of all tokens that are kept
_MOST_PROMPTS = 1024
_MOST_COMPARED = 64  # of a client's, the latest
_MOST_SEARCHED = 3  # for what follows a difference
_SHOWN, _BEFORE = 24, 12  # tokens of a difference, and before it
_RUN = 32  # tokens that must be the same after a difference: fewer are so by chance
_LONGEST = 1024  # tokens of a difference


class MissReason(str, Enum):
    """Why tokens of a prompt were not in the prefix cache."""

    NEW = "new"  # its client has sent nothing like them before, as far as is remembered
    DIFFERED = "differed"  # they followed something else in an earlier prompt
    EVICTED = "evicted"  # their blocks were needed for others
    FORGOTTEN = "forgotten"  # cleared, or evicted so long ago that nobody knows when
    UNREAD = "unread"  # the earlier prompt was still being read itself
    ADAPTER = "adapter"  # they were read with another adapter
    WINDOW = "window"  # blocks are there, but not all that the attention window needs
    SNAPSHOT = "snapshot"  # blocks are there, but no state of the layers that keep one
    SCORES = "scores"  # log-probabilities of the prompt want them computed
    OFF = "off"  # prefix caching is off


@dataclass(frozen=True)
class Miss:
    """Why a prompt was not found further in the prefix cache, beside its client's earlier ones.

    position: of its first token that had to be computed; where it differs, of the first that does.
    lost_tokens: that had been read before, and were read again.
    lost_seconds: what that took, at the pace of this prompt; None: not known yet.
    earlier: the request that had had them.
    stood_tokens, stands_tokens: how many differ, in the earlier prompt and in this one.
    stood, stands: the first of them, after some that do not differ.
    ago: seconds since they were evicted. short: by how many blocks the pool was too small to keep
        them, at most. taker: the request that got their blocks, if it is the same client's; "" for
        another one's.
    """

    reason: MissReason
    position: int
    lost_tokens: int = 0
    lost_seconds: float | None = None
    earlier: str | None = None
    stood_tokens: int = 0
    stands_tokens: int = 0
    stood: tuple[int, ...] = ()
    stands: tuple[int, ...] = ()
    ago: float | None = None
    short: int | None = None
    taker: str | None = None

    def cost(self, tokens: int, seconds: float) -> Miss:
        """With what it cost, where the prompt's other ``tokens`` took this long."""
        return replace(self, lost_seconds=self.lost_tokens * seconds / max(1, tokens))


def miss_of(memory: MemoryStory) -> Miss | None:
    """What has been found of that request's; None: nothing was amiss, or nobody has looked."""
    miss = memory.miss
    assert miss is None or isinstance(miss, Miss)
    return miss


@dataclass(eq=False, slots=True)
class Earlier:
    """A prompt, with what has been written to it once its request has ended.

    Of the request itself, which holds far more, nothing is kept beyond its end.
    """

    request_id: str
    owner: Owner
    adapter: Adapter | None
    tokens: bytes
    living: tuple[Request, Sequence] | None  # the request and its trunk, until it has ended

    @property
    def unread_from(self) -> int | None:
        """The first token that is not computed yet; None: all are."""
        return None if self.living is None else self.living[1].num_computed


class EarlierPrompts:
    """The latest prompts, each client's apart, and those of each cache salt.

    So nobody learns by his misses what others have sent. Bounded in bytes: the oldest goes first.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._all: OrderedDict[str, Earlier] = OrderedDict()  # by request, the oldest first
        self._owned: dict[Owner, dict[str, Earlier]] = {}
        self.num_bytes = 0

    def add(self, request: Request, trunk: Sequence, tokens: bytes) -> None:
        self.remove(request.request_id)
        owner = _owner(request)
        one = Earlier(request.request_id, owner, request.adapter, tokens, (request, trunk))
        self._all[request.request_id] = one
        self._owned.setdefault(owner, {})[request.request_id] = one
        self.num_bytes += len(tokens)
        self._bound()

    def end(self, request: Request) -> None:
        """The request has ended: what was written belongs to what its client sends next."""
        one = self._all.get(request.request_id)
        if one is None or one.living is None or one.living[0] is not request:
            return
        _, trunk = one.living
        tokens = trunk.token_ids[: trunk.num_computed].tobytes()
        if len(tokens) < len(one.tokens):  # it was not read to its end, and never will be
            self.remove(request.request_id)
            return
        self.num_bytes += len(tokens) - len(one.tokens)
        one.tokens, one.living = tokens, None
        self._bound()

    def remove(self, request_id: str) -> None:
        one = self._all.pop(request_id, None)
        if one is None:
            return
        self.num_bytes -= len(one.tokens)
        del self._owned[one.owner][request_id]
        if not self._owned[one.owner]:
            del self._owned[one.owner]

    def clear(self) -> None:
        self._all.clear()
        self._owned.clear()
        self.num_bytes = 0

    def of(self, request: Request) -> Iterator[Earlier]:
        """Earlier prompts of the request's client, the latest first."""
        own = self._owned.get(_owner(request), {})
        return islice(reversed(own.values()), _MOST_COMPARED)

    def _bound(self) -> None:
        while self.num_bytes > self._most_bytes or len(self._all) > _MOST_PROMPTS:
            self.remove(next(iter(self._all)))


class Rejoined(NamedTuple):
    """Where two prompts are the same again after a difference, and for how many tokens."""

    there: int
    here: int
    run: int


class MissFinder(Capability):
    """Compares each prompt that is not cached to its end with its client's earlier ones.

    A prompt that is found whole costs a copy of its tokens, and no token that is generated costs
    anything.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        prompts: EarlierPrompts | None = None,
    ) -> None:
        self._clock = clock
        self._prompts = prompts or EarlierPrompts()
        self._takers: OrderedDict[int, tuple[Owner, str]] = OrderedDict()  # the latest's requests

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        self._scheduler = scheduler
        self.cleared()
        scheduler.admission.watcher = self

    def request_ends(self, request: Request) -> None:
        self._prompts.end(request)

    def cleared(self) -> None:
        self._prompts.clear()
        self._takers.clear()

    def looked_up(self, group: SequenceGroup, cached: int, stateless: int = 0) -> None:
        request, trunk = group.request, group.branches[0]
        self._takers[trunk.seq_id] = _owner(request), request.request_id
        if len(self._takers) > _MOST_PROMPTS:
            self._takers.popitem(last=False)
        if request.pooling is not None or trunk.cuts or trunk.spans:
            return  # no text goes on from it, or its names are not those of its tokens alone
        memory, tokens = group.memory, trunk.token_ids.tobytes()
        memory.read_since = self._clock()
        size = self._scheduler.allocator.block_size
        if _findable(len(trunk.token_ids), tokens, size) > cached:
            memory.miss = self._why(group, cached, stateless, tokens)
        self._prompts.add(request, trunk, tokens)

    def _why(self, group: SequenceGroup, cached: int, stateless: int, tokens: bytes) -> Miss:
        request, size = group.request, self._scheduler.allocator.block_size
        own, adapter = [*self._prompts.of(request)], request.adapter
        alike = [one for one in own if one.adapter == adapter]
        depth, deepest = _deepest(tokens, alike)
        if (lost := _findable(depth, tokens, size) - cached) > 0:
            if stateless:
                earlier = deepest[0].request_id
                return Miss(MissReason.SNAPSHOT, cached, min(lost, stateless), earlier=earlier)
            return self._lost(group, deepest[0], cached, lost)
        if deepest and deepest[0].living is None and len(deepest[0].tokens) == _WIDTH * depth:
            self._prompts.remove(deepest[0].request_id)  # this one is it, and more
        found = [(one, _rejoin(one.tokens, tokens, depth)) for one in deepest]
        one, again = max(found, key=lambda pair: pair[1].run, default=(None, _APART))
        if one is not None and again.run:
            return Miss(
                MissReason.DIFFERED,
                depth,
                again.run,
                earlier=one.request_id,
                stood_tokens=again.there - depth,
                stands_tokens=again.here - depth,
                stood=_shown(one.tokens, depth, again.there),
                stands=_shown(tokens, depth, again.here),
            )
        others = [one for one in self._prompts.of(request) if one.adapter != adapter]
        depth, deepest = _deepest(tokens, others)
        if (lost := _findable(depth, tokens, size) - cached) > 0:
            earlier = deepest[0].request_id
            return Miss(MissReason.ADAPTER, cached, lost, earlier=earlier)
        return Miss(MissReason.NEW, cached)

    def _lost(self, group: SequenceGroup, one: Earlier, cached: int, lost: int) -> Miss:
        """Why tokens were not found though an earlier prompt began with them."""
        scheduler, earlier = self._scheduler, one.request_id
        size, pools = scheduler.allocator.block_size, scheduler.allocator.views()
        if scheduler.prefix_cache is None:
            return Miss(MissReason.OFF, cached, lost, earlier=earlier)
        if group.scores is not None:
            return Miss(MissReason.SCORES, cached, lost, earlier=earlier)
        names = group.branches[0].block_hashes[cached // size : -(-(cached + lost) // size)]
        evictions = [pool.eviction(name) for name in names for pool in pools]
        oldest = max(filter(None, evictions), key=lambda one: one.short, default=None)
        if oldest is not None:
            ago = max(0.0, self._clock() - oldest.time)
            taker = self._taker(group.request, oldest.taker)
            evicted, short = MissReason.EVICTED, oldest.short
            return Miss(evicted, cached, lost, earlier=earlier, ago=ago, short=short, taker=taker)
        reason = MissReason.FORGOTTEN
        contents = scheduler.allocator.contents
        if one.unread_from is not None and one.unread_from < cached + lost:
            reason = MissReason.UNREAD
        elif contents is not None and names and contents.locate(names[0]) is not None:
            reason = MissReason.WINDOW
        return Miss(reason, cached, lost, earlier=earlier)

    def _taker(self, request: Request, seq_id: int) -> str | None:
        if seq_id not in self._takers:
            return None
        owner, taker = self._takers[seq_id]
        return taker if owner == _owner(request) else ""


_APART = Rejoined(0, 0, 0)


def _owner(request: Request) -> Owner:
    return request.client, request.cache_salt


def _findable(depth: int, tokens: bytes, block_size: int) -> int:
    """How many of a prompt's first ``depth`` tokens are in full blocks; one is always computed."""
    return min(depth - depth % block_size, len(tokens) // _WIDTH - 1)


def _deepest(tokens: bytes, earlier: Iterable[Earlier]) -> tuple[int, list[Earlier]]:
    """How many first tokens a prompt shares with one of these at most, and with which of them."""
    depth, deepest = 0, list[Earlier]()
    for one in earlier:
        here = slice(_WIDTH * depth, _WIDTH * depth + _WIDTH)
        if one.tokens[here] == tokens[here] and (common := _common(one.tokens, tokens)) > depth:
            depth, deepest = common, [one]
        elif len(deepest) < _MOST_SEARCHED and one.tokens.startswith(tokens[: _WIDTH * depth]):
            deepest.append(one)
    return depth, deepest


def _common(one: bytes, other: bytes, at: int = 0, other_at: int = 0) -> int:
    """How many tokens are the same, from ``at`` and ``other_at`` on."""
    first, second = _WIDTH * at, _WIDTH * other_at
    low, high = 0, min(len(one) - first, len(other) - second) // _WIDTH + 1
    while high - low > 1:  # ``low`` tokens are the same, ``high`` are not
        middle = (low + high) // 2
        start, end = _WIDTH * low, _WIDTH * middle
        if one[first + start : first + end] == other[second + start : second + end]:
            low = middle
        else:
            high = middle
    return low


def _rejoin(there: bytes, here: bytes, depth: int) -> Rejoined:
    """Where ``here`` goes on as ``there`` does, after they have differed from ``depth`` on."""
    gap = 1
    while gap <= _LONGEST:
        probe = here[_WIDTH * (depth + gap) : _WIDTH * (depth + gap + _RUN)]
        if len(probe) < _WIDTH * _RUN:
            break
        gap, at = 2 * gap, there.find(probe, _WIDTH * depth)
        while at % _WIDTH and at >= 0:
            at = there.find(probe, at + 1)
        if at < 0:
            continue
        first, second = at // _WIDTH, depth + gap // 2
        while min(first, second) > depth and _token(there, first - 1) == _token(here, second - 1):
            first, second = first - 1, second - 1
        return Rejoined(first, second, _common(there, here, first, second))
    return _APART


def _shown(tokens: bytes, depth: int, end: int) -> tuple[int, ...]:
    first, last = max(0, depth - _BEFORE), min(end, depth + _SHOWN)
    return tuple(memoryview(tokens[_WIDTH * first : _WIDTH * last]).cast("I"))


def _token(tokens: bytes, at: int) -> bytes:
    return tokens[_WIDTH * at : _WIDTH * at + _WIDTH]
