"""Why a prompt was not found in the prefix cache, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from quire.capabilities.misses import Miss, MissReason
from quire.core.scheduling import Scheduler
from quire.engine.dashboard.remedies import PoolBytes, larger_pool

Read = Callable[[Sequence[int]], str]
_LONGEST = 80  # characters of a text that differs


@dataclass(frozen=True)
class MissRow:
    """Why no more of a prompt was in the prefix cache, beside what its client sent before.

    text: all of it in words. position: of the first token that had to be computed or, where an
    earlier prompt goes on differently, of the first that differs. lost_tokens: that had been read
    before, and were read again. lost_seconds: what that took; null: not known yet. earlier: the
    request that had had them. stood_tokens, stands_tokens: that differ, in it and in this one.
    evicted_seconds: since their blocks were taken. short_blocks: by how many the pool was too
    small, at most. taker: the request that took them; "" for another client's. stood, stands: what
    differs, only with --dashboard-show-text.
    """

    text: str
    reason: str
    position: int
    lost_tokens: int
    lost_seconds: float | None
    earlier: str | None
    stood_tokens: int
    stands_tokens: int
    evicted_seconds: float | None
    short_blocks: int | None
    taker: str | None
    stood: str | None = None
    stands: str | None = None


def miss_row(
    miss: Miss, scheduler: Scheduler, pool: PoolBytes | None, read: Read | None = None
) -> MissRow:
    """The row of a miss. read: makes text of tokens, where texts may be shown."""
    stood, stands = (None, None) if read is None else _texts(miss, read)
    return MissRow(
        text=_words(miss, scheduler, pool, stood, stands),
        reason=miss.reason.value,
        position=miss.position,
        lost_tokens=miss.lost_tokens,
        lost_seconds=miss.lost_seconds,
        earlier=miss.earlier,
        stood_tokens=miss.stood_tokens,
        stands_tokens=miss.stands_tokens,
        evicted_seconds=miss.ago,
        short_blocks=miss.short,
        taker=miss.taker,
        stood=stood,
        stands=stands,
    )


def _texts(miss: Miss, read: Read) -> tuple[str | None, str | None]:
    """What differs, from the beginning of the line in which it does."""
    if miss.reason is not MissReason.DIFFERED:
        return None, None
    stood, stands = read(miss.stood), read(miss.stands)
    pairs = zip(stood, stands, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    first = stood.rfind("\n", 0, same) + 1
    return stood[first:][:_LONGEST], stands[first:][:_LONGEST]


def _words(
    miss: Miss, scheduler: Scheduler, pool: PoolBytes | None, stood: str | None, stands: str | None
) -> str:
    lost, reason = (
        f"{miss.lost_tokens:,} cached tokens lost at token {miss.position:,}",
        miss.reason,
    )
    if reason is MissReason.NEW:
        return f"nothing like it was sent before from token {miss.position:,} on"
    if miss.lost_seconds is not None:
        lost += f" ({miss.lost_seconds:.3g} s to read them again)"
    if reason is MissReason.DIFFERED:
        if stood is not None:
            return f"{lost}: {stood!r} was there, {stands!r} is there now"
        there, here = miss.stood_tokens, miss.stands_tokens
        return f"{lost}: {there:,} tokens were there, {here:,} others are there now"
    if reason is not MissReason.EVICTED or miss.ago is None or miss.short is None:
        return f"{lost}: {_WHY[reason]}"
    by = "" if miss.taker is None else f" for {miss.taker or 'a request of another client'}"
    remedy = larger_pool(scheduler, miss.short, pool)
    return (
        f"{lost}: evicted {miss.ago:.3g} s before{by}; a pool larger by {miss.short:,} blocks "
        f"would have kept them ({remedy})"
    )


_WHY = {
    MissReason.FORGOTTEN: "the cache was cleared, or they were evicted too long ago to know when",
    MissReason.UNREAD: "the request that sent them first was still being read",
    MissReason.ADAPTER: "they were read with another adapter, and keys differ with it",
    MissReason.WINDOW: "the attention window before them is no longer in the cache",
    MissReason.SNAPSHOT: "their blocks are in the cache, but no state of layers that keep one",
    MissReason.SCORES: "log-probabilities of the prompt are asked for, so all of it is computed",
    MissReason.OFF: "prefix caching is off (--enable-prefix-caching)",
}
