"""Which tokens may come next, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from quire.capabilities.grammar.guide import Guide, May
from quire.kernels.threads import usable_cores

Bits = NDArray[np.uint32]


class Place(NamedTuple):
    """Where a guide is asked: after so many tokens of its output."""

    guide: Guide
    output: Sequence[int]
    length: int


def fill_masks(places: Sequence[Place], vocab_size: int) -> Bits:
    """Whether each token may come next, a bit each, the lowest first: [N, words], a row a place.

    All grammars are asked at once, which lets other threads run, and takes all cores. A guide
    that is asked at several places, for drafts, moves from one to the next in their order.
    """
    words = -(-vocab_size // 32)
    bits = np.empty((len(places), words), dtype=np.uint32)
    for round_ in _rounds(places):
        matchers = []
        for row in round_:
            guide, output, length = places[row]
            guide.follow(output, length)
            if _fill_without_grammar(bits[row], guide, output):
                matchers.append((guide.text(), row))
        _compute(matchers, bits)
        for row in round_:
            guide = places[row].guide
            if guide.renewed(places[row].output):
                _compute([(guide.text(), row)], bits)
            if guide.failure is not None:
                bits[row] = 0
            elif guide.next() is May.MATCH_OR_THINK:
                assert guide.rules.thinking is not None
                _allow(bits[row], guide.rules.thinking.start[:1])
    return bits


def _rounds(places: Sequence[Place]) -> list[list[int]]:
    """The places' numbers, so that in no round a guide is asked twice."""
    rounds: list[list[int]] = []
    times: dict[int, int] = {}
    for row, place in enumerate(places):
        time = times.get(id(place.guide), 0)
        times[id(place.guide)] = time + 1
        if time == len(rounds):
            rounds.append([])
        rounds[time].append(row)
    return rounds


def _fill_without_grammar(row: Bits, guide: Guide, output: Sequence[int]) -> bool:
    """Fill a row by what needs no grammar, or only its next word; whether it takes more."""
    match guide.next():
        case May.NOTHING:
            row[:] = 0
        case int(token):
            row[:] = 0
            _allow(row, (token,))
        case May.ANYTHING:
            row[:] = 0xFFFFFFFF
        case May.GO_ON:
            row[:] = 0xFFFFFFFF
            for token in guide.rules.ends:
                row[token // 32] &= ~np.uint32(1 << token % 32)
        case May.MATCH if forced := guide.forced(output):
            row[:] = 0
            _allow(row, forced[:1])
        case _:
            return True
    return False


def _allow(row: Bits, tokens: Iterable[int]) -> None:
    for token in tokens:
        row[token // 32] |= np.uint32(1 << token % 32)


def _compute(matchers: list[tuple[LLMatcher, int]], bits: Bits) -> None:
    executor = _executor() if len(matchers) > 1 else None
    if executor is not None:
        executor.unsafe_compute_mask_ptr(matchers, bits.ctypes.data, bits.strides[0], len(bits))
        return
    for matcher, row in matchers:
        matcher.unsafe_compute_mask_ptr(bits[row].ctypes.data, bits[row].nbytes)


@cache
def _executor() -> LLExecutor | None:
    """Its threads are the process's, as its cores are. Where these are two, it takes longer."""
    cores = usable_cores()
    return LLExecutor(cores) if cores > 2 else None
