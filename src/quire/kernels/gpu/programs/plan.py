"""Attention's work in pieces of about equal size, listed on the device.

A work item is a tile of some new tokens of one sequence and a segment of the keys that they see.
Where a tile's keys are one segment, its item gives the result; otherwise the items of its segments
stand one after another in the list and their results are merged (split-K; Dao et al.,
"Flash-Decoding for long-context inference", 2023). Since the list is made on the device from the
lengths that are there, a recorded launch serves any lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = tl.constexpr(6)  # of an item: sequence (-1: none), tile, first and last key, index, count


@triton.jit
def oldest_seen(positions, window, BY_CHUNKS: tl.constexpr):
    """The oldest that tokens at ``positions`` see; see ``AttentionSpec``."""
    if BY_CHUNKS:
        return positions // window * window
    else:
        return tl.maximum(positions - window + 1, 0)


@triton.jit(
    do_not_specialize=["num_seqs", "capacity", "most_segments", "least_segment", "window"],
    do_not_specialize_on_alignment=["starts", "contexts"],
)
def list_items(
    items,  # [capacity, FIELDS] int32
    starts,  # [S + 1] int64
    contexts,  # [S] int64
    num_seqs,
    capacity,
    most_segments,  # by which all segments together may exceed the tiles
    least_segment,  # tokens, a multiple of COLUMNS
    window,
    BY_CHUNKS: tl.constexpr,
    TILE: tl.constexpr,  # new tokens in a tile
    SINGLE: tl.constexpr,  # of the sequences with one new token; else of those with several
    COLUMNS: tl.constexpr,  # segments are multiples of
    SEQS: tl.constexpr,  # power of two, at least S
    CHUNK: tl.constexpr,  # items written at once
):
    """Program s lists the work items of sequence s; the last one, S, the unused items."""
    seqs = tl.arange(0, SEQS)
    real = seqs < num_seqs
    start = tl.load(starts + seqs, mask=real, other=0)
    new = tl.load(starts + seqs + 1, mask=real, other=0) - start
    context = tl.load(contexts + seqs, mask=real, other=0)
    wanted = (new == 1) if SINGLE else (new > 1)
    tiles = tl.where(wanted, tl.cdiv(new, TILE), 0)
    spans = tl.minimum(context, window + TILE - 1)  # most keys that a tile sees
    share = tl.cdiv(tl.sum(tiles * spans, axis=0), most_segments)
    segment = tl.maximum(tl.cdiv(share, COLUMNS) * COLUMNS, least_segment)
    # To the nearest: those of like tiles shall end with one wave of programs, not begin another.
    segments = tl.maximum((spans + segment // 2) // segment, 1)
    counts = tiles * segments

    own = tl.program_id(0)
    first_item = tl.sum(tl.where(seqs < own, counts, 0), axis=0)
    is_own = seqs == own
    num_items = tl.sum(tl.where(is_own, counts, 0), axis=0)
    own_segments = tl.maximum(tl.sum(tl.where(is_own, segments, 0), axis=0), 1)
    own_tiles = tl.sum(tl.where(is_own, tiles, 0), axis=0)
    own_new = tl.sum(tl.where(is_own, new, 0), axis=0)
    own_context = tl.sum(tl.where(is_own, context, 0), axis=0)
    # A tile's segments are alike, rather than the last one what the others leave.
    own_span = tl.sum(tl.where(is_own, spans, 0), axis=0)
    own_segment = tl.cdiv(tl.cdiv(own_span, own_segments), COLUMNS) * COLUMNS
    if own == num_seqs:
        num_items = capacity - first_item
    for done in range(0, num_items, CHUNK):
        item = done + tl.arange(0, CHUNK)
        # Later tiles see more keys: they come first, so that none of them is left for the end.
        tile, index = own_tiles - 1 - item // own_segments, item % own_segments
        oldest_query = own_context - own_new + tile * TILE
        end = tl.minimum(oldest_query + TILE, own_context)
        first = oldest_seen(oldest_query, window, BY_CHUNKS) + index * own_segment
        place = items + (first_item + item) * FIELDS
        mask = item < num_items
        none = own == num_seqs
        tl.store(place, tl.where(none, -1, own), mask=mask)
        tl.store(place + 1, tile, mask=mask)
        tl.store(place + 2, first, mask=mask)
        tl.store(place + 3, tl.minimum(first + own_segment, end), mask=mask)
        tl.store(place + 4, index, mask=mask)
        tl.store(place + 5, tl.where(none, 1, own_segments), mask=mask)
