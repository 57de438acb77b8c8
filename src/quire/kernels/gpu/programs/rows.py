"""What stands between two matrix products, row by row: norms and activations."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm(
    x,  # [rows, width], x_stride elements from row to row; becomes x + delta
    x_stride,
    delta,  # [rows, width] likewise; None: nothing is added
    delta_stride,
    out,  # [rows, width]
    weight,  # [width], or None
    bias,
    eps,
    width,
    CENTRED: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """Program r: row r of x, with delta added in place, normalised."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, WIDTH_PAD)
    mask = dims < width
    total = tl.load(x + row * x_stride + dims, mask=mask, other=0.0)
    if delta is not None:
        added = tl.load(delta + row * delta_stride + dims, mask=mask, other=0.0)
        total = (total.to(tl.float32) + added.to(tl.float32)).to(total.dtype)
        tl.store(x + row * x_stride + dims, total, mask=mask)
    wide = total.to(tl.float32)
    if CENTRED:
        wide = tl.where(mask, wide - tl.sum(wide, axis=0) / width, 0.0)
    result = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    if weight is not None:
        result *= tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        result += tl.load(bias + dims, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + dims, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def activated(gate, up, above, below, KIND: tl.constexpr, GATED: tl.constexpr):
    """Numbers in float32 activated, and GATED: times ``up``; see ``Activation``.

    above, below: of xielu; see ``Alphas``. KIND: silu, gelu, gelu_tanh, relu, relu2,
    clamped_swiglu or xielu.
    """
    if KIND == "silu":
        result = gate * tl.sigmoid(gate)
    elif KIND == "gelu":
        result = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2 z).
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        result = gate * tl.sigmoid(2 * inner)
    elif KIND == "clamped_swiglu":
        gate = tl.where(gate > 7, 7.0, gate)
        result = gate * tl.sigmoid(1.702 * gate)
    elif KIND == "xielu":
        low = tl.exp(tl.minimum(gate, -1e-6)) - 1 - gate
        result = tl.where(gate > 0, above * gate * gate, below * low) + 0.5 * gate
    else:
        result = tl.where(gate < 0, 0.0, gate)
        if KIND == "relu2":
            result *= result
    if GATED:
        if KIND == "clamped_swiglu":
            up = 1 + tl.where(up > 7, 7.0, tl.where(up < -7, -7.0, up))
        result *= up
    return result


@triton.jit
def activate(
    x,  # [rows, width], or GATED: [rows, 2 width]; x_stride elements from row to row
    x_stride,
    out,  # [rows, width]
    width,
    above,
    below,
    factor,  # of what the function is given
    KIND: tl.constexpr,  # this one, above and below as for ``activated``
    GATED: tl.constexpr,
    STEP: tl.constexpr,
):
    """Program (r, p): ``STEP`` elements of row r."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * STEP + tl.arange(0, STEP)
    mask = dims < width
    source = x + row * x_stride + dims
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = gate
    if GATED:
        up = tl.load(source + width, mask=mask, other=0.0).to(tl.float32)
    result = activated(gate * factor, up, above, below, KIND, GATED)
    tl.store(out + row * width + dims, result.to(out.dtype.element_ty), mask=mask)
