"""Attention of tiles of queries over segments of keys that are read through block tables.

Online softmax in base two (Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022). A
tile's rows are its tokens times the query heads that share a key head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.gpu.programs.plan import FIELDS, oldest_seen

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _load_rows(base, places, inside, D: tl.constexpr, D_PAD: tl.constexpr, MASKED: tl.constexpr):
    """[places, D_PAD] of rows D long; zeros where not ``inside``, and after D."""
    dims = tl.arange(0, D_PAD)
    pointers = base + places[:, None] * D + dims[None, :]
    if MASKED:
        return tl.load(pointers, mask=inside[:, None] & (dims < D)[None, :], other=0.0)
    elif D < D_PAD:
        return tl.load(pointers, mask=(dims < D)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def _store_rows(base, places, x, inside, D: tl.constexpr, D_PAD: tl.constexpr):
    """x [places, D_PAD] to rows D long, those that are ``inside``."""
    dims = tl.arange(0, D_PAD)
    pointers = base + places[:, None] * D + dims[None, :]
    tl.store(pointers, x.to(base.dtype.element_ty), mask=inside[:, None] & (dims < D)[None, :])


@triton.jit
def _visible(
    key_positions, positions, window, inside,
    BY_CHUNKS: tl.constexpr,  # see ``AttentionSpec``
    BEYOND: tl.constexpr,  # keys that the window has left behind, rather than those inside it
):  # fmt: skip
    """[ROWS, COLUMNS]: which keys the queries at ``positions`` [ROWS] see."""
    if BEYOND:
        seen = key_positions[None, :] <= positions[:, None] - window
    else:
        seen = key_positions[None, :] <= positions[:, None]
        seen &= key_positions[None, :] >= oldest_seen(positions, window, BY_CHUNKS)[:, None]
    return seen & inside[None, :]


@triton.jit
def _sweep(
    total, peak, mass,  # float32: values seen so far [ROWS, DV_PAD], highest scores and weights
    query, positions,  # [ROWS, DK_PAD], [ROWS]
    keys, values, key_scales, value_scales,  # as in ``attend``
    table, column_stride, dropped, num_sink_blocks, kv_head,  # of one sequence: its row
    unit, inner, softcap, window, first, last,
    BLOCK: tl.constexpr, BLOCK_ROWS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DK_PAD: tl.constexpr, DV_PAD: tl.constexpr, COLUMNS: tl.constexpr, SOFTCAP: tl.constexpr,
    BY_CHUNKS: tl.constexpr, BEYOND: tl.constexpr,  # as in ``_visible``
    MASKED: tl.constexpr,  # whether a query may not see a key from ``first`` to ``last``
):  # fmt: skip
    """Go on over keys ``first`` to ``last``."""
    for begin in range(first, last, COLUMNS):
        key_positions = begin + tl.arange(0, COLUMNS)
        inside = key_positions < last
        column = key_positions // BLOCK
        column = tl.where(column < num_sink_blocks, column, column - dropped)
        if MASKED:
            block = tl.load(table + column * column_stride, mask=inside, other=0)
        else:
            block = tl.load(table + column * column_stride)
        places = block * BLOCK_ROWS + kv_head * BLOCK + key_positions % BLOCK
        key = _load_rows(keys, places, inside, DK, DK_PAD, MASKED)
        if key_scales is not None:
            key = key.to(tl.float32)  # no type of a cache is wider, or loses by it
        key = key.to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if key_scales is not None:
            scores *= tl.load(key_scales + places, mask=inside, other=0.0)[None, :]
        if SOFTCAP:
            scores = softcap * tanh(scores * inner)
        if MASKED:
            seen = _visible(key_positions, positions, window, inside, BY_CHUNKS, BEYOND)
            scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        # Where nothing was seen yet, any number will do in place of minus infinity.
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(scores * unit - (level * unit)[:, None])
        fade = tl.exp2((peak - level) * unit)
        mass = mass * fade + tl.sum(weights, axis=1)
        value = _load_rows(values, places, inside, DV, DV_PAD, MASKED)
        if value_scales is not None:
            factors = tl.load(value_scales + places, mask=inside, other=0.0)
            value = value.to(tl.float32) * factors[:, None]
        value = value.to(query.dtype)
        total = total * fade[:, None]
        total = tl.dot(weights.to(value.dtype), value, total, input_precision="ieee")
        peak = higher
    return total, peak, mass


@triton.jit
def _whole_rounds(
    first, last, oldest, newest, window,
    WINDOW: tl.constexpr, BY_CHUNKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The first and the last round of keys without a mask, since queries see all of them.

    Queries are at ``oldest`` to ``newest``, rounds are counted from ``first``.
    """
    seen = first
    if WINDOW:
        unseen = oldest_seen(newest, window, BY_CHUNKS) - first
        seen += tl.cdiv(tl.maximum(unseen, 0), COLUMNS) * COLUMNS
        seen = tl.minimum(seen, last)
    return seen, seen + tl.maximum(tl.minimum(last, oldest + 1) - seen, 0) // COLUMNS * COLUMNS


# Numbers and addresses that change from step to step must not make new programs.
@triton.jit(
    do_not_specialize=["table_stride", "column_stride", "num_sink_blocks", "window", "num_sinks"],
    do_not_specialize_on_alignment=["starts", "contexts", "block_tables", "num_dropped"],
)
def attend(
    query,  # [T, H, DK], contiguous
    sink_query,  # the same, or None
    keys, values,  # [B, KV_HEADS, BLOCK, DK], [B, KV_HEADS, BLOCK, DV], BLOCK_ROWS from B to B
    key_scales, value_scales,  # [B, KV_HEADS, BLOCK] float32, or None
    out,  # [T, H, DV]
    parts,  # [items, KV_HEADS, ROWS, DV] float32
    stats,  # [items, KV_HEADS, ROWS, 2] float32: peak, in base two, and mass
    items,  # [items, FIELDS] int32
    starts, contexts,  # [S + 1], [S] int64
    block_tables, table_stride, column_stride,  # [S, widest row] int64
    num_dropped,  # [S] int64
    num_sink_blocks,
    scale,  # positive
    softcap, window, num_sinks,
    sink_logits,  # [HEADS] float32, or None
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, DK_PAD: tl.constexpr, DV_PAD: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,  # power of two, at least TILE times the heads that share a key head
    COLUMNS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,  # whether there is one
    BY_CHUNKS: tl.constexpr,  # see ``AttentionSpec``
    SINKS: tl.constexpr,
):  # fmt: skip
    """Program (i, h) computes work item i for key head h."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    number = tl.program_id(0)
    kv_head = tl.program_id(1)
    item = items + number * FIELDS
    seq = tl.load(item)
    if seq < 0:
        return
    tile, first, last = tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    index, num_segments = tl.load(item + 4), tl.load(item + 5)
    start = tl.load(starts + seq)
    new = (tl.load(starts + seq + 1) - start).to(tl.int32)
    context = tl.load(contexts + seq).to(tl.int32)
    table = block_tables + seq.to(tl.int64) * table_stride
    dropped = tl.load(num_dropped + seq).to(tl.int32)

    rows = tl.arange(0, ROWS)
    token = tile * TILE + rows // GROUP
    real = (rows < TILE * GROUP) & (token < new)
    positions = context - new + token
    oldest = context - new + tile * TILE
    newest = tl.minimum(oldest + TILE, context) - 1
    heads = (start + token) * HEADS + kv_head * GROUP + rows % GROUP  # of all tokens' heads
    total = tl.zeros((ROWS, DV_PAD), tl.float32)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    # Scores are left as the products are until they are exponents of two.
    unit = (1.0 if SOFTCAP else scale) * _LOG2_E
    inner = scale / softcap if SOFTCAP else 0.0
    if sink_logits is not None:
        # A key that has no value: seen already.
        logits = tl.load(sink_logits + kv_head * GROUP + rows % GROUP)
        peak = tl.where(index == 0, logits * _LOG2_E / unit, peak)
        mass += tl.where(index == 0, 1.0, 0.0)
    if SINKS:
        beyond = tl.where(index == 0, tl.minimum(num_sinks, newest - window + 1), 0)
        far = _load_rows(sink_query, heads, real, DK, DK_PAD, True)
        total, peak, mass = _sweep(
            total, peak, mass, far, positions, keys, values, key_scales, value_scales,
            table, column_stride, dropped, num_sink_blocks, kv_head,
            unit, inner, softcap, window, 0, beyond,
            BLOCK, BLOCK_ROWS, DK, DV, DK_PAD, DV_PAD, COLUMNS, SOFTCAP, False, True, True,
        )  # fmt: skip
    near = _load_rows(query, heads, real, DK, DK_PAD, True)
    seen, unseen = _whole_rounds(first, last, oldest, newest, window, WINDOW, BY_CHUNKS, COLUMNS)
    for part in tl.static_range(0 if WINDOW else 1, 3):
        total, peak, mass = _sweep(
            total, peak, mass, near, positions, keys, values, key_scales, value_scales,
            table, column_stride, dropped, num_sink_blocks, kv_head,
            unit, inner, softcap, window,
            first if part == 0 else seen if part == 1 else unseen,
            seen if part == 0 else unseen if part == 1 else last,
            BLOCK, BLOCK_ROWS, DK, DV, DK_PAD, DV_PAD, COLUMNS, SOFTCAP, BY_CHUNKS, False,
            part != 1,
        )  # fmt: skip

    if num_segments == 1:
        # A sequence without tokens, which pads a batch, gives zeros.
        result = total / tl.where(mass == 0, 1.0, mass)[:, None]
        _store_rows(out, heads, result, real, DV, DV_PAD)
    else:
        own = (number.to(tl.int64) * KV_HEADS + kv_head) * ROWS + rows
        _store_rows(parts, own, total, real, DV, DV_PAD)
        tl.store(stats + own * 2, peak * unit, mask=real)
        tl.store(stats + own * 2 + 1, mass, mask=real)


@triton.jit(do_not_specialize_on_alignment=["starts"])
def merge(
    out,  # [T, H, DV]
    parts,  # these as ``attend`` has left them
    stats,
    items,
    starts,  # [S + 1] int64
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DV: tl.constexpr,
    DV_PAD: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,  # rows of a program
    PARTS: tl.constexpr,  # segments read at once
):
    """Program (i, h, p) puts some rows together if item i is the first of several segments."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    number = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    item = items + number * FIELDS
    index, num_segments = tl.load(item + 4), tl.load(item + 5)
    if index > 0 or num_segments == 1:
        return
    seq = tl.load(item)
    rows = tl.program_id(2) * STEP + tl.arange(0, STEP)
    token = tl.load(starts + seq) + tl.load(item + 1) * TILE + rows // GROUP
    real = (rows < TILE * GROUP) & (token < tl.load(starts + seq + 1))
    dims = tl.arange(0, DV_PAD)
    total = tl.zeros((STEP, DV_PAD), tl.float32)
    peak = tl.full((STEP,), -float("inf"), tl.float32)
    mass = tl.zeros((STEP,), tl.float32)
    for begin in range(0, num_segments, PARTS):
        segment = begin + tl.arange(0, PARTS)
        own = ((number + segment) * KV_HEADS + kv_head)[:, None] * ROWS + rows[None, :]
        there = (segment < num_segments)[:, None] & real[None, :]
        peaks = tl.load(stats + own * 2, mask=there, other=-float("inf"))
        masses = tl.load(stats + own * 2 + 1, mask=there, other=0.0)
        part = tl.load(
            parts + own[:, :, None] * DV + dims[None, None, :],
            mask=there[:, :, None] & (dims < DV)[None, None, :],
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(peaks, axis=0))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(peaks - level[None, :])
        fade = tl.exp2(peak - level)
        mass = mass * fade + tl.sum(weights * masses, axis=0)
        total = total * fade[:, None] + tl.sum(weights[:, :, None] * part, axis=0)
        peak = higher
    heads = token * HEADS + kv_head * GROUP + rows % GROUP
    result = total / tl.where(mass == 0, 1.0, mass)[:, None]
    _store_rows(out, heads, result, real, DV, DV_PAD)
