"""Copies whole blocks, of many tensors in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = tl.constexpr(5)  # of a route: source, target, their strides, size of a block; in bytes


@triton.jit
def copy_blocks(
    routes,  # [R, FIELDS] int64: from which tensor to which
    pairs,  # [P, 2] int64: block in the source, block in the target
    WORD: tl.constexpr,  # integer type that divides all sizes and addresses
    WORD_BYTES: tl.constexpr,
    STEP: tl.constexpr,  # words at once
):
    """Program (p, r) copies the blocks of pair p along route r."""
    pair = pairs + tl.program_id(0) * 2
    route = routes + tl.program_id(1) * FIELDS
    source = tl.load(route) + tl.load(pair) * tl.load(route + 2)
    target = tl.load(route + 1) + tl.load(pair + 1) * tl.load(route + 3)
    source = source.to(tl.pointer_type(WORD))
    target = target.to(tl.pointer_type(WORD))
    num_words = tl.load(route + 4) // WORD_BYTES
    for begin in range(0, num_words, STEP):
        words = begin + tl.arange(0, STEP)
        mask = words < num_words
        tl.store(target + words, tl.load(source + words, mask=mask), mask=mask)
