"""New queries, keys and values: normalised, turned, and written where they belong, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl

# Added and taken away again, leaves a float32 rounded to a whole number, ties to even ones.
_ROUNDING = tl.constexpr(12582912.0)


@triton.jit
def _weighed(x, weight, dims, mask):
    if weight is not None:
        x *= tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)[None, :]
    return x


@triton.jit
def _normalised(x, mean, scale, weight, bias, dims, mask):
    x = (x - mean) * scale
    x = _weighed(x, weight, dims, mask)
    if bias is not None:
        x += tl.load(bias + dims, mask=mask, other=0.0).to(tl.float32)[None, :]
    return x


@triton.jit
def _turned(x, partner, cos, sin, token, dims, HALF: tl.constexpr):
    """x [heads, D] with pairs turned; ``partner`` holds the other of each pair."""
    pair = tl.where(dims < HALF, dims, dims - HALF)
    mask = dims < 2 * HALF
    cosines = tl.load(cos + token * HALF + pair, mask=mask, other=1.0)
    sines = tl.load(sin + token * HALF + pair, mask=mask, other=0.0)
    sines = tl.where(dims < HALF, -sines, sines)
    return x * cosines[None, :] + partner * sines[None, :]


@triton.jit
def _read(
    x, places, dims, mask, weight, bias, eps,
    D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Heads [heads, D] in float32, normalised, and the same with each pair's members swapped."""
    inside = mask[:, None] & (dims < D)[None, :]
    own = tl.load(x + places[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    swapped = tl.where(dims < HALF, dims + HALF, tl.where(dims < 2 * HALF, dims - HALF, dims))
    partner = own
    if HALF > 0:
        partner = tl.load(x + places[:, None] + swapped[None, :], mask=inside, other=0.0)
        partner = partner.to(tl.float32)
    if NORM:
        mean = tl.zeros((own.shape[0], 1), tl.float32)
        if CENTRED:
            mean = tl.sum(own, axis=1)[:, None] / D
        gaps = tl.where((dims < D)[None, :], own - mean, 0.0)
        scale = tl.rsqrt(tl.sum(gaps * gaps, axis=1) / D + eps)[:, None]
        own = _normalised(own, mean, scale, weight, bias, dims, dims < D)
        partner = _normalised(partner, mean, scale, weight, bias, swapped, dims < D)
    return own, partner


@triton.jit
def _hand_on(
    out, x, partner, cos, sin, weight, token, places, mask, dims,
    D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """x [heads, D], turned and weighed, to ``places`` of the queries to attend with."""
    if HALF > 0:
        x = _turned(x, partner, cos, sin, token, dims, HALF)
    x = _weighed(x, weight, dims, dims < D)
    tl.store(out + places, x.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _write(
    pool, scales, x, places, dims, mask, D: tl.constexpr, LIMIT: tl.constexpr, WHOLE: tl.constexpr
):
    """x [heads, D_PAD] to rows ``places`` [heads] of the pool, quantised where it has scales."""
    if scales is not None:
        largest = tl.max(tl.where((dims < D)[None, :], tl.abs(x), 0.0), axis=1)
        scale = largest / LIMIT
        tl.store(scales + places, scale, mask=mask)
        x = x / tl.where(scale > 0, scale, 1.0)[:, None]
        if WHOLE:
            x = (x + _ROUNDING) - _ROUNDING
        x = tl.minimum(tl.maximum(x, -LIMIT), LIMIT)
    stored = mask[:, None] & (dims < D)[None, :]
    target = pool + places[:, None] * D + dims[None, :]
    tl.store(target, x.to(pool.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def store(
    query, key, value,  # [T, H, DK], strides as given, dimensions next to each other
    query_out, sink_query_out,  # [T, H, DK]; the latter may be None
    keys, values,  # [B, KV_HEADS, BLOCK, DK], [B, KV_HEADS, BLOCK, DV], BLOCK_ROWS from B to B
    key_scales, value_scales,  # [B, KV_HEADS, BLOCK] float32, or None
    slots,  # [T]; -1: nowhere
    cos, sin, sink_cos, sink_sin,  # [T, HALF] float32, or None
    query_scale,  # [T] float32, or None
    query_weight, query_bias, query_eps,  # [DK], or None
    key_weight, key_bias, key_eps,
    query_strides_token, query_strides_head,
    key_strides_token, key_strides_head,
    value_strides_token, value_strides_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, DK_PAD: tl.constexpr, DV_PAD: tl.constexpr,
    HALF: tl.constexpr,  # pairs that are turned
    QUERY_NORM: tl.constexpr, QUERY_CENTRED: tl.constexpr,
    KEY_NORM: tl.constexpr, KEY_CENTRED: tl.constexpr,
    TURNED_FIRST: tl.constexpr,  # before weights of norms, which are without biases then
    LIMIT: tl.constexpr,  # largest number of the pool's type
    WHOLE: tl.constexpr,  # whether the pool holds integers
    STEP: tl.constexpr,  # heads of a program
):  # fmt: skip
    """Program (t, p) does some heads of token t: of queries, or keys, or values.

    No name stands for tensors of two shapes: the compiler refuses that, in whichever branches.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query_parts: tl.constexpr = tl.cdiv(HEADS, STEP)
    kv_parts: tl.constexpr = tl.cdiv(KV_HEADS, STEP)
    key_dims = tl.arange(0, DK_PAD)
    if part < query_parts:
        head = part * STEP + tl.arange(0, STEP)
        mask = head < HEADS
        places = token * query_strides_token + head * query_strides_head
        own, partner = _read(
            query, places, key_dims, mask, None if TURNED_FIRST else query_weight, query_bias,
            query_eps,
            DK, HALF, QUERY_NORM, QUERY_CENTRED,
        )  # fmt: skip
        if query_scale is not None:
            factor = tl.load(query_scale + token)
            own, partner = own * factor, partner * factor
        stored = mask[:, None] & (key_dims < DK)[None, :]
        target = (token * HEADS + head)[:, None] * DK + key_dims[None, :]
        after = query_weight if TURNED_FIRST else None
        _hand_on(
            query_out, own, partner, cos, sin, after, token, target, stored, key_dims, DK, HALF
        )
        if sink_query_out is not None:
            _hand_on(
                sink_query_out, own, partner, sink_cos, sink_sin, after, token, target, stored,
                key_dims, DK, HALF,
            )  # fmt: skip
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            part -= query_parts
            block, offset = slot // BLOCK, slot % BLOCK
            if part < kv_parts:
                head = part * STEP + tl.arange(0, STEP)
                mask = head < KV_HEADS
                places = token * key_strides_token + head * key_strides_head
                key_own, key_partner = _read(
                    key, places, key_dims, mask, None if TURNED_FIRST else key_weight, key_bias,
                    key_eps,
                    DK, HALF, KEY_NORM, KEY_CENTRED,
                )  # fmt: skip
                if HALF > 0:
                    key_own = _turned(key_own, key_partner, cos, sin, token, key_dims, HALF)
                after = key_weight if TURNED_FIRST else None
                key_own = _weighed(key_own, after, key_dims, key_dims < DK)
                target = block * BLOCK_ROWS + head * BLOCK + offset
                _write(keys, key_scales, key_own, target, key_dims, mask, DK, LIMIT, WHOLE)
            else:
                head = (part - kv_parts) * STEP + tl.arange(0, STEP)
                mask = head < KV_HEADS
                dims = tl.arange(0, DV_PAD)
                places = token * value_strides_token + head * value_strides_head
                inside = mask[:, None] & (dims < DV)[None, :]
                value_own = tl.load(value + places[:, None] + dims[None, :], mask=inside, other=0.0)
                target = block * BLOCK_ROWS + head * BLOCK + offset
                value_own = value_own.to(tl.float32)
                _write(values, value_scales, value_own, target, dims, mask, DV, LIMIT, WHOLE)
