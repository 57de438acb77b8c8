"""Mixtures of experts: products of each expert with the rows that chose it, whoever they are.

A row and an expert that it chose are a pair. Pairs are sorted by expert, and what one program
multiplies is a tile of pairs of one expert. How many tiles there are the device alone knows; the
host launches as many as there may be, and those beyond do nothing. So no launch depends on the
choice, and a recorded one serves any.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.gpu.programs.rows import activated

FIELDS = tl.constexpr(3)  # of a tile: expert (-1: none), first pair and the one after the last


@triton.jit
def choose(
    numbers,  # the router's, float32 [rows, experts], stride elements from row to row
    stride,
    bias,  # [experts] float32, added to scores for the choice; or None
    factors,  # [experts] float32, times the shares; or None
    chosen,  # [rows, CHOSEN] int16
    shares,  # [rows, CHOSEN] float32
    num_experts,
    scale,
    BY_SOFTMAX: tl.constexpr,  # this and the others as for ``Routing``
    SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_PAD: tl.constexpr,  # powers of two, at least as many as there are
    EXPERTS: tl.constexpr,
):
    """Program r: the experts of row r, those of the highest scores first, and their shares."""
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    left = experts < num_experts
    number = tl.load(numbers + row * stride + experts, mask=left, other=-float("inf"))
    if SIGMOID:
        score = tl.sigmoid(number)
    else:
        score = tl.exp(number - tl.max(number, axis=0))
        if not (BY_SOFTMAX and RENORMALISE):
            score = score / tl.sum(score, axis=0)
    worth = number if BY_SOFTMAX else score
    if bias is not None:
        worth += tl.load(bias + experts, mask=left, other=0.0)
    worth = tl.where(worth == worth, worth, float("inf"))  # NaN is the largest
    ranks = tl.arange(0, CHOSEN_PAD)
    found = tl.zeros((CHOSEN_PAD,), tl.int32)
    share = tl.zeros((CHOSEN_PAD,), tl.float32)
    for rank in tl.static_range(CHOSEN):
        best = tl.max(tl.where(left, worth, -float("inf")), axis=0)
        expert = tl.min(tl.where(left & (worth == best), experts, EXPERTS), axis=0)
        left = left & (experts != expert)
        found = tl.where(ranks == rank, expert, found)
        own = tl.sum(tl.where(experts == expert, score, 0.0), axis=0)
        share = tl.where(ranks == rank, own, share)
    if RENORMALISE:
        share = share / (tl.sum(share, axis=0) + 1e-20)
    share *= scale
    mask = ranks < CHOSEN
    if factors is not None:
        share *= tl.load(factors + found, mask=mask, other=0.0)
    tl.store(chosen + row * CHOSEN + ranks, found.to(tl.int16), mask=mask)
    tl.store(shares + row * CHOSEN + ranks, share, mask=mask)


@triton.jit(do_not_specialize=["num_pairs"])
def sort_pairs(
    chosen,  # [pairs] int16
    order,  # [pairs] int64: see ``multiply``
    sorted_experts,  # [pairs] int16
    num_pairs,
    CHUNK: tl.constexpr,  # pairs of a program
    ROUND: tl.constexpr,  # pairs that they are compared with at once
):
    """Program p puts its pairs where they belong: behind those of experts before, and earlier ones
    of the same. Each is compared with all, so this is for few.
    """
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mask = pair < num_pairs
    expert = tl.load(chosen + pair, mask=mask, other=0)
    place = tl.zeros((CHUNK,), tl.int32)
    for done in range(0, num_pairs, ROUND):
        other = done + tl.arange(0, ROUND)
        real = other < num_pairs
        theirs = tl.load(chosen + other, mask=real, other=0)[None, :]
        same = (theirs == expert[:, None]) & (other[None, :] < pair[:, None])
        before = real[None, :] & ((theirs < expert[:, None]) | same)
        place += tl.sum(tl.where(before, 1, 0), axis=1)
    tl.store(order + place, pair.to(tl.int64), mask=mask)
    tl.store(sorted_experts + place, expert, mask=mask)


@triton.jit(do_not_specialize=["num_pairs", "capacity", "num_experts"])
def list_tiles(
    tiles,  # [capacity, FIELDS] int32
    sorted_experts,  # [pairs] int16
    num_pairs,
    capacity,
    num_experts,
    ROWS: tl.constexpr,  # pairs of a tile
    EXPERTS: tl.constexpr,  # power of two, at least as many as there are
    ROUNDS: tl.constexpr,  # of a search among the pairs
    CHUNK: tl.constexpr,  # tiles that a program writes
):
    """Program p lists the tiles from p ``CHUNK`` on."""
    experts = tl.arange(0, EXPERTS)
    real = experts < num_experts
    first = tl.zeros((EXPERTS,), tl.int32)  # of an expert's pairs
    end = tl.zeros((EXPERTS,), tl.int32)
    # Both are sums of powers of two, the highest first: so many pairs are of experts before.
    for done in tl.static_range(ROUNDS):
        step = 1 << (ROUNDS - 1 - done)
        inside = first + step <= num_pairs
        found = tl.load(sorted_experts + first + step - 1, mask=inside & real, other=0)
        first = tl.where(inside & (found < experts), first + step, first)
        inside = end + step <= num_pairs
        found = tl.load(sorted_experts + end + step - 1, mask=inside & real, other=0)
        end = tl.where(inside & (found <= experts), end + step, end)
    counts = tl.where(real, tl.cdiv(end - first, ROWS), 0)
    last = tl.cumsum(counts, axis=0)  # the tile after an expert's own

    tile = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    own = tl.sum(tl.where(last[None, :] <= tile[:, None], 1, 0), axis=1)  # the tile's expert
    is_own = experts[None, :] == own[:, None]
    begin = tl.sum(tl.where(is_own, (first + ROWS * (counts - last))[None, :], 0), axis=1)
    begin += tile * ROWS
    limit = tl.sum(tl.where(is_own, end[None, :], 0), axis=1)
    place = tiles + tile * FIELDS
    mask = tile < capacity
    tl.store(place, tl.where(own < num_experts, own, -1), mask=mask)
    tl.store(place + 1, begin, mask=mask)
    tl.store(place + 2, tl.minimum(begin + ROWS, limit), mask=mask)


@triton.jit
def multiply(
    x,  # [rows, inputs], x_stride elements from row to row
    x_stride,
    order,  # [pairs] int64: of pairs sorted by expert, row * SHARE + rank
    shares,  # [rows * SHARE] float32, times what experts are given; None: that is x itself
    weights,  # [experts, outputs, inputs], GATED: twice the outputs; expert_stride elements apart
    expert_stride,
    biases,  # [experts, outputs], or None
    out,  # [pairs, outputs]
    tiles,  # [capacity, FIELDS] int32
    inputs,
    outputs,
    above,  # of xielu; see ``Alphas``
    below,
    SHARE: tl.constexpr,  # pairs of a row of x, and out is sorted by expert; 0: x is, not out
    KIND: tl.constexpr,  # an activation of the result, see ``activated``; "": none
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # outputs of a program
    DEPTH: tl.constexpr,  # inputs of a round
    WHOLE: tl.constexpr,  # rounds have no inputs beyond the last
):
    """Programs take one tile after another, and of it ``COLUMNS`` outputs after the others."""
    blocks = tl.cdiv(outputs, COLUMNS)
    tile = tiles + tl.program_id(0) // blocks * FIELDS
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        pairs = tl.load(tile + 1).to(tl.int64) + tl.arange(0, ROWS)
        real = pairs < tl.load(tile + 2)
        columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < outputs
        dims = tl.arange(0, DEPTH)
        unsorted = tl.load(order + pairs, mask=real, other=0)
        if shares is not None:
            share = tl.load(shares + unsorted, mask=real, other=0.0)
        source = unsorted // SHARE if SHARE else pairs
        rows = x + source[:, None] * x_stride + dims[None, :]
        own = weights + expert * expert_stride
        own += tl.where(inside, columns, 0)[None, :].to(tl.int64) * inputs + dims[:, None]
        beside = own + outputs.to(tl.int64) * inputs
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        second = tl.zeros((ROWS, COLUMNS), tl.float32)
        for done in range(0, inputs, DEPTH):
            if WHOLE:
                given = tl.load(rows + done, mask=real[:, None], other=0.0)
                weight = tl.load(own + done)
            else:
                left = dims < inputs - done
                given = tl.load(rows + done, mask=real[:, None] & left[None, :], other=0.0)
                weight = tl.load(own + done, mask=left[:, None], other=0.0)
            if shares is not None:
                given = (given.to(tl.float32) * share[:, None]).to(given.dtype)
            total = tl.dot(given, weight, total, input_precision="ieee")
            if GATED:
                if WHOLE:
                    weight = tl.load(beside + done)
                else:
                    weight = tl.load(beside + done, mask=left[:, None], other=0.0)
                second = tl.dot(given, weight, second, input_precision="ieee")
        if biases is not None:
            bias = biases + expert * outputs * (2 if GATED else 1) + columns
            total += tl.load(bias, mask=inside, other=0.0).to(tl.float32)[None, :]
            if GATED:
                second += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[None, :]
        if KIND != "":
            total = activated(total, second, above, below, KIND, GATED)
        place = pairs if SHARE else unsorted
        target = out + place[:, None] * outputs + columns[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def add_up(
    parts,  # [rows, CHOSEN, width]
    shares,  # [rows, CHOSEN] float32, times the parts; None: they are as they are
    shared,  # [rows, width], added; or None
    gates,  # [rows] float32, gate_stride apart, whose sigmoids are times it; or None
    gate_stride,
    out,  # [rows, width]
    width,
    CHOSEN: tl.constexpr,
    STEP: tl.constexpr,
):
    """Program (r, p): ``STEP`` elements of row r, its parts added up in the order of the choice."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * STEP + tl.arange(0, STEP)
    mask = dims < width
    total = tl.zeros((STEP,), tl.float32)
    for rank in tl.static_range(CHOSEN):
        pair = row * CHOSEN + rank
        part = tl.load(parts + pair * width + dims, mask=mask, other=0.0).to(tl.float32)
        if shares is not None:
            part *= tl.load(shares + pair)
        total += part
    if shared is not None:
        part = tl.load(shared + row * width + dims, mask=mask, other=0.0).to(tl.float32)
        if gates is not None:
            part *= tl.sigmoid(tl.load(gates + row * gate_stride))
        total += part
    tl.store(out + row * width + dims, total.to(out.dtype.element_ty), mask=mask)
