"""Choosing tokens from logits: a program for each row, and nothing for the host to wait for.

Nothing is sorted. What top_k and top_p keep, and where a number falls among that, are questions for
the least gap up to which there are so many tokens, or is so much weight; that is found by halving
the gaps there may be. A gap is how far, in nats at the row's temperature, a token lies below the
likeliest, and its weight is exp(-gap). Gaps are not negative, so they are in order as their bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FAINTEST = tl.constexpr(80.0)  # nats; a token further off has no part in a draw
_NEAR, _FURTHER = tl.constexpr(1.0), tl.constexpr(1.6)


@triton.jit
def _gaps(logits, places, count, peak, temperature):
    x = tl.load(logits + places, mask=places < count, other=-float("inf"))
    return (peak - x) / temperature


@triton.jit
def _up_to(
    logits, count, peak, temperature, bits,
    COUNTED: tl.constexpr, WEIGHED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The tokens whose gap is at most that of these bits (-1: none): how many, and their weight.

    Lanes add up what is theirs, and are added up at the end: to do so for each step would wait.
    """
    most = bits.to(tl.float32, bitcast=True)
    lanes = tl.arange(0, STEP)
    numbers, weights = lanes * 0, tl.zeros((STEP,), tl.float32)
    for first in range(0, count, STEP):
        gaps = _gaps(logits, first + lanes, count, peak, temperature)
        if COUNTED:
            numbers += (gaps <= most).to(tl.int32)
        if WEIGHED:
            weights += tl.where(gaps <= most, tl.exp(-gaps), 0.0)
    number, weight = 0, tl.full((), 0.0, tl.float64)
    if COUNTED:
        number = tl.sum(numbers, axis=0)
    if WEIGHED:
        weight = tl.sum(weights.to(tl.float64), axis=0)
    return number, weight


@triton.jit
def _edge(
    logits, count, peak, temperature, wanted, most, ties,
    OF_WEIGHT: tl.constexpr, MORE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Where ``wanted`` is reached, or MORE than that, by likelihood: of tokens, or OF_WEIGHT.

    It is at ``most``, as bits, at the latest, where ``ties`` tokens count. The gap's bits, the
    weight of all that are nearer, that of a token there, and how many of these count.
    """
    low, high = most * 0, most
    while low < high:
        middle = low + (high - low) // 2
        number, weight = _up_to(
            logits, count, peak, temperature, middle, not OF_WEIGHT, OF_WEIGHT, STEP
        )
        measured = weight if OF_WEIGHT else number
        reached = measured > wanted if MORE else measured >= wanted
        low, high = tl.where(reached, low, middle + 1), tl.where(reached, middle, high)
    nearer, below = _up_to(logits, count, peak, temperature, high - 1, True, True, STEP)
    number, _ = _up_to(logits, count, peak, temperature, high, True, False, STEP)
    each = tl.exp(-high.to(tl.float32, bitcast=True)).to(tl.float64)
    here = number - nearer
    if not OF_WEIGHT:
        here = tl.minimum(here, wanted - nearer)
    return high, below, each, tl.minimum(here, tl.where(high == most, ties, here))


@triton.jit
def _place_of_tie(logits, width, peak, temperature, bits, number, otherwise, STEP: tl.constexpr):
    """The place of the token of that gap that has so many of the same before it."""
    gap, seen, place = bits.to(tl.float32, bitcast=True), 0, otherwise
    for first in range(0, width, STEP):
        gaps = _gaps(logits, first + tl.arange(0, STEP), width, peak, temperature)
        same = (gaps == gap).to(tl.int32)
        here = tl.sum(same, axis=0)
        if (seen <= number) & (number < seen + here):
            counts = tl.cumsum(same, axis=0)
            place = first + tl.sum((counts <= number - seen).to(tl.int32), axis=0)
        seen += here
    return place


@triton.jit
def _place_of_weight(logits, width, peak, temperature, most, aim, STEP: tl.constexpr):
    """The place at which the weight of those before it and its own exceeds ``aim``.

    Added up in another order, all of them may weigh a little less: then it is the last that weighs.
    """
    lanes = tl.arange(0, STEP)
    below, place, latest = aim * 0.0, -1, lanes * 0
    limit = most.to(tl.float32, bitcast=True)
    for first in range(0, width, STEP):
        gaps = _gaps(logits, first + lanes, width, peak, temperature)
        weights = tl.where(gaps <= limit, tl.exp(-gaps), 0.0)
        latest = tl.where(weights > 0.0, first + lanes, latest)
        here = tl.sum(weights, axis=0).to(tl.float64)
        if (below <= aim) & (aim < below + here):
            sums = below + tl.cumsum(weights.to(tl.float64), axis=0)
            place = first + tl.sum((sums <= aim).to(tl.int32), axis=0)
            place = tl.minimum(place, tl.max(latest, axis=0))
        below += here
    return tl.where(place < 0, tl.max(latest, axis=0), place)


@triton.jit
def _likeliest(logits, width, STEP: tl.constexpr):
    """The largest and its place, the first of equals; NaN is larger than any number."""
    lanes = tl.arange(0, STEP)
    best, places = tl.full((STEP,), -float("inf"), tl.float32), lanes * 0
    for first in range(0, width, STEP):
        x = tl.load(logits + first + lanes, mask=first + lanes < width, other=-float("inf"))
        better = (x > best) | ((x != x) & (best == best))
        best, places = tl.where(better, x, best), tl.where(better, first + lanes, places)
    strange = best != best
    peak = tl.max(tl.where(strange, -float("inf"), best), axis=0)
    if tl.max(strange.to(tl.int32), axis=0) > 0:
        peak = float("nan")
        first = tl.min(tl.where(strange, places, width), axis=0)
    else:
        first = tl.min(tl.where(best == peak, places, width), axis=0)
    return peak, first


@triton.jit
def draw(
    logits,  # [rows, width] float32, stride elements from row to row
    stride,
    filters,  # [rows, 5] float64, or None: see ``Kernels.draw``
    near,  # [rows, ROOM] float32: overwritten
    tokens,  # [rows] int64
    peaks,  # [rows] float32
    width,
    ROOM: tl.constexpr,
    STEP: tl.constexpr,
):
    """Program r: a token of row r, and the row's largest number."""
    row = tl.program_id(0).to(tl.int64)
    whole = logits + row * stride
    peak, token = _likeliest(whole, width, STEP)
    tl.store(peaks + row, peak)
    if filters is not None:
        filters += row * 5
        top_k, top_p = tl.load(filters + 2).to(tl.int32), tl.load(filters + 3)
        if top_k > 1:
            temperature, uniform = tl.load(filters).to(tl.float32), tl.load(filters + 4)
            limit = tl.minimum(tl.load(filters + 1), _FAINTEST).to(tl.float32)
            most = limit.to(tl.int32, bitcast=True)
            _, kept = _up_to(whole, width, peak, temperature, most, False, True, STEP)
            if (top_k < width) | (top_p < 1.0):
                token = _draw_truncated(
                    whole, width, near + row * ROOM, peak, temperature, most, kept, top_k, top_p,
                    uniform, token, ROOM, STEP,
                )  # fmt: skip
            else:
                token = _place_of_weight(
                    whole, width, peak, temperature, most, uniform * kept, STEP
                )
    tl.store(tokens + row, token.to(tl.int64))


@triton.jit
def _draw_truncated(
    whole, width, near, peak, temperature, most, kept, top_k, top_p, uniform, otherwise,
    ROOM: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Draw by likelihood from what top_k and then top_p keep of those up to ``most``."""
    count, some = _narrowed(
        whole, width, near, peak, temperature, most, kept, top_k, top_p, ROOM, STEP
    )
    logits = near if some else whole
    ties = width
    if top_k < width:
        most, below, each, ties = _edge(
            logits, count, peak, temperature, top_k, most, ties, False, False, STEP
        )
        kept = below + ties * each
    if top_p < 1.0:
        target = top_p * kept
        most, below, each, ties = _edge(
            logits, count, peak, temperature, target, most, ties, True, False, STEP
        )
        # The first token at which the target is reached is the last that top_p keeps.
        number = tl.maximum(((target - below) / each).to(tl.int32), 0)
        number += (below + number * each < target).to(tl.int32)
        ties = tl.minimum(tl.maximum(number, 1), ties)
        kept = below + ties * each
    aim = uniform * kept
    place, below, each, ties = _edge(
        logits, count, peak, temperature, aim, most, ties, True, True, STEP
    )
    number = tl.minimum(tl.maximum(((aim - below) / each).to(tl.int32), 0), ties - 1)
    return _place_of_tie(whole, width, peak, temperature, place, number, otherwise, STEP)


@triton.jit
def _narrowed(
    whole, width, near, peak, temperature, most, kept, top_k, top_p,
    ROOM: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Put the logits near the peak into ``near`` if they are enough and fit there.

    How many there are to look at now, and whether that is so.
    """
    count, found = width, False
    cut = tl.full((), _NEAR, tl.float32)
    limit = most.to(tl.float32, bitcast=True)
    while cut < limit * _FURTHER:
        bits = tl.minimum(cut, limit).to(tl.int32, bitcast=True)
        number, weight = _up_to(whole, width, peak, temperature, bits, True, True, STEP)
        enough = (number >= top_k) if top_k < width else (weight >= top_p * kept)
        cut *= _FURTHER
        if number > ROOM:
            cut = limit * _FURTHER
        elif enough:
            _gather(whole, width, near, peak, temperature, bits, STEP)
            count, found, cut = number, True, limit * _FURTHER
    return count, found


@triton.jit
def _gather(whole, width, near, peak, temperature, bits, STEP: tl.constexpr):
    """Put the logits whose gap is at most that of these bits one after another into ``near``."""
    limit, done = bits.to(tl.float32, bitcast=True), 0
    for first in range(0, width, STEP):
        places = first + tl.arange(0, STEP)
        chosen = (_gaps(whole, places, width, peak, temperature) <= limit).to(tl.int32)
        x = tl.load(whole + places, mask=places < width, other=0.0)
        counts = tl.cumsum(chosen, axis=0)
        tl.store(near + done + counts - 1, x, mask=chosen > 0)
        done += tl.sum(chosen, axis=0)
    tl.debug_barrier()  # other threads read what these have written
