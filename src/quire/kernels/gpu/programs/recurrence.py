"""Layers with a state: short convolutions, and matrices that every token decays, adds to and reads.

What a sequence has to take in is a row of tokens: first those drafts of the step before that turned
out right, whose inputs its slot keeps, then the new ones, whose last may be drafts again. A token's
*place* is counted in that row; before place 0 there is what the slot keeps for the convolution.

A slot of -1 is a sequence that pads the batch: nothing of it is read or written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of(counts, seq):
    """A sequence's number of drafts; 0 where the step has none."""
    if counts is None:
        return seq * 0
    else:
        return tl.load(counts + seq)


@triton.jit
def _silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def _column(x, x_stride, kept, kept_stride, first, place, confirmed, columns, mask):
    """What came in for the token at ``place``, in these columns, in float32.

    x: of new tokens, of which the sequence's first is row ``first``; kept: of confirmed drafts.
    """
    new = x + (first + place - confirmed) * x_stride + columns
    found = tl.load(new, mask=mask & (place >= confirmed), other=0.0).to(tl.float32)
    if kept is not None:
        found += tl.load(
            kept + place * kept_stride + columns,
            mask=mask & (place >= 0) & (place < confirmed),
            other=0.0,
        )
    return found


@triton.jit
def _seen(
    x, x_stride, kept, kept_stride, rows, first, place, confirmed, fresh, channels, mask,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """What the convolution sees of the token at ``place``, which may be before the first."""
    found = _column(x, x_stride, kept, kept_stride, first, place, confirmed, channels, mask)
    if GATED:
        values = 2 * CHANNELS + channels
        found *= _column(x, x_stride, kept, kept_stride, first, place, confirmed, values, mask)
    if KERNEL > 1:
        older = rows + (place + KERNEL - 1) * CHANNELS + channels
        found += tl.load(older, mask=mask & (place < 0) & (fresh == 0), other=0.0)
    return found


@triton.jit
def _convolved(
    x, x_stride, kept, kept_stride, rows, first, place, confirmed, fresh, channels, mask,
    weight, bias,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The convolution at ``place``, of any shape of channels."""
    total = tl.zeros_like(channels).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channels, mask=mask, other=0.0)
    for number in tl.static_range(KERNEL):
        seen = _seen(
            x, x_stride, kept, kept_stride, rows, first, place + (number - (KERNEL - 1)),
            confirmed, fresh, channels, mask, CHANNELS, KERNEL, GATED,
        )  # fmt: skip
        total += tl.load(weight + number * CHANNELS + channels, mask=mask, other=0.0) * seen
    return total


@triton.jit
def _sequence(starts, contexts, slots, counts, seq):
    """A sequence's slot, first row, new tokens, confirmed drafts, and whether it begins."""
    first = tl.load(starts + seq)
    new = tl.load(starts + seq + 1) - first
    fresh = tl.load(contexts + seq) == new
    return tl.load(slots + seq), first, new, _of(counts, seq), fresh.to(tl.int32)


@triton.jit
def _row(owners, starts, counts, row, most_before, MOST_DRAFTS: tl.constexpr):
    """The sequence and place of a row: those of confirmed drafts come before all new tokens."""
    if row >= most_before:
        seq = tl.load(owners + row - most_before)
        place = row - most_before - tl.load(starts + seq) + _of(counts, seq)
    else:
        each: tl.constexpr = max(MOST_DRAFTS, 1)
        seq, place = row // each, row % each
    return seq, place


@triton.jit(
    do_not_specialize=["most_before"],
    do_not_specialize_on_alignment=["owners", "starts", "contexts", "slots", "counts"],
)
def prepare(
    x,  # [T, columns], x_stride elements from row to row
    x_stride,
    inputs, inputs_stride,  # [slots, MOST_DRAFTS, COLUMNS] float32, or None
    rows, rows_stride,  # [slots, KERNEL - 1, CHANNELS] float32
    mixed,  # [R, CHANNELS] float32: queries, keys, values
    decays,  # [R, HEADS], BY_CHANNEL [R, HEADS DK]; float32
    strengths,  # [R, HEADS] float32, of what is added
    owners,  # [T] int64, the sequence of each token
    starts, contexts, slots, counts,  # [S + 1], [S], [S], [S] int64; counts: confirmed, or None
    most_before,  # R - T: MOST_DRAFTS for each sequence
    weight, bias,  # [KERNEL, CHANNELS], [CHANNELS] float32, or None
    rate,  # [HEADS] float32: the logarithm of a decay for a step of 1
    step_bias,  # [HEADS], BY_CHANNEL [HEADS DK]; float32
    factor, least, most,  # of steps
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DK_PAD: tl.constexpr, DV_PAD: tl.constexpr,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, KERNEL: tl.constexpr,
    MOST_DRAFTS: tl.constexpr, DELTA: tl.constexpr, BY_CHANNEL: tl.constexpr,
    STEP: tl.constexpr,  # heads of a program
):  # fmt: skip
    """Program (r, p) convolves some heads of row r, and makes what the recurrence takes of them."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    seq, place = _row(owners, starts, counts, row, most_before, MOST_DRAFTS)
    slot, first, _, confirmed, fresh = _sequence(starts, contexts, slots, counts, seq)
    key_parts: tl.constexpr = tl.cdiv(KEY_HEADS, STEP)
    if (slot >= 0) & ((row >= most_before) | (place < confirmed)):
        kept = None
        if MOST_DRAFTS > 0:
            kept = inputs + slot * inputs_stride
        older = rows + slot * rows_stride
        out = mixed + row * CHANNELS
        if part < key_parts:
            head = part * STEP + tl.arange(0, STEP)
            dims = tl.arange(0, DK_PAD)
            mask = (head < KEY_HEADS)[:, None] & (dims < DK)[None, :]
            channels = head[:, None] * DK + dims[None, :]
            for number in tl.static_range(2):  # queries, keys
                of = channels + number * (KEY_HEADS * DK)
                found = _silu(
                    _convolved(
                        x, x_stride, kept, COLUMNS, older, first, place, confirmed, fresh, of,
                        mask, weight, bias, CHANNELS, KERNEL, False,
                    )
                )  # fmt: skip
                if DELTA:
                    found = tl.where(mask, found, 0.0)
                    length = tl.rsqrt(tl.sum(found * found, axis=1) + 1e-6)
                    if number == 0:
                        length *= DK**-0.5
                    found *= length[:, None]
                tl.store(out + of, found, mask=mask)
        else:
            head = (part - key_parts) * STEP + tl.arange(0, STEP)
            value_dims = tl.arange(0, DV_PAD)
            own = head < HEADS
            value_mask = own[:, None] & (value_dims < DV)[None, :]
            values = 2 * KEY_HEADS * DK + head[:, None] * DV + value_dims[None, :]
            value = _silu(
                _convolved(
                    x, x_stride, kept, COLUMNS, older, first, place, confirmed, fresh, values,
                    value_mask, weight, bias, CHANNELS, KERNEL, False,
                )
            )  # fmt: skip
            tl.store(out + values, value, mask=value_mask)
            behind: tl.constexpr = CHANNELS + HEADS * DV
            steps: tl.constexpr = behind + (HEADS if DELTA else 0)
            rates = tl.load(rate + head, mask=own, other=0.0)
            if DELTA:
                strength = _column(
                    x, x_stride, kept, COLUMNS, first, place, confirmed, behind + head, own
                )
                tl.store(strengths + row * HEADS + head, tl.sigmoid(strength), mask=own)
            if BY_CHANNEL:
                key_dims = tl.arange(0, DK_PAD)
                inside = own[:, None] & (key_dims < DK)[None, :]
                which = head[:, None] * DK + key_dims[None, :]
                step = _column(
                    x, x_stride, kept, COLUMNS, first, place, confirmed, steps + which, inside
                )
                step = factor * step + tl.load(step_bias + which, mask=inside, other=0.0)
                step = tl.minimum(tl.maximum(_softplus(step), least), most)
                decay = tl.exp(step * rates[:, None])
                tl.store(decays + row * (HEADS * DK) + which, decay, mask=inside)
            else:
                length_of = _column(
                    x, x_stride, kept, COLUMNS, first, place, confirmed, steps + head, own
                )
                length_of = factor * length_of + tl.load(step_bias + head, mask=own, other=0.0)
                length_of = tl.minimum(tl.maximum(_softplus(length_of), least), most)
                tl.store(decays + row * HEADS + head, tl.exp(length_of * rates), mask=own)
                if not DELTA:
                    tl.store(strengths + row * HEADS + head, length_of, mask=own)


@triton.jit
def _token(
    mixed, decays, strengths, row, head, key_head, keys, inside, columns, wanted, there,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    CHANNELS: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """A row's query, key, values, decay and strength, for some columns of a head's values."""
    own = mixed + row * CHANNELS
    query = tl.load(own + key_head * DK + keys, mask=inside & there, other=0.0)
    key = tl.load(own + (KEY_HEADS + key_head) * DK + keys, mask=inside & there, other=0.0)
    value = own + 2 * KEY_HEADS * DK + head * DV + columns
    value = tl.load(value, mask=wanted & there, other=0.0)
    if BY_CHANNEL:
        place = decays + (row * HEADS + head) * DK + keys
        decay = tl.load(place, mask=inside & there, other=0.0)
    else:
        decay = tl.load(decays + row * HEADS + head, mask=there, other=0.0)
    strength = tl.load(strengths + row * HEADS + head, mask=there, other=0.0)
    return query, key, value, decay, strength


@triton.jit
def _total(products, DK_PAD: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums [COLUMNS] over keys. Some at once, for each waits for the one before."""
    apart: tl.constexpr = min(DK_PAD, 16)
    parts = tl.reshape(products, (DK_PAD // apart, apart, COLUMNS))
    return tl.sum(tl.sum(parts, axis=0), axis=0)


@triton.jit
def _run(
    tile, begin, end, before, first, confirmed,
    mixed, decays, strengths, read, skip, most_before, head, key_head, keys, inside, columns,
    wanted, left, slots_of, state_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DK_PAD: tl.constexpr, COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr, DELTA: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """The state [DK, columns] after the tokens at places [begin, end), which are read out.

    left: see ``recur``; slots_of: where the state's numbers are in slot 0.

    The next token's numbers are asked for before those of this one are used.
    """
    row = tl.where(begin < confirmed, before + begin, most_before + first + begin - confirmed)
    query, key, value, decay, strength = _token(
        mixed, decays, strengths, row, head, key_head, keys, inside, columns, wanted, begin < end,
        HEADS, KEY_HEADS, DK, DV, CHANNELS, BY_CHANNEL,
    )  # fmt: skip
    for place in range(begin, end):
        after = place + 1
        next_row = tl.where(
            after < confirmed, before + after, most_before + first + after - confirmed
        )
        next_query, next_key, next_value, next_decay, next_strength = _token(
            mixed, decays, strengths, next_row, head, key_head, keys, inside, columns, wanted,
            after < end, HEADS, KEY_HEADS, DK, DV, CHANNELS, BY_CHANNEL,
        )  # fmt: skip
        # What is added is the same for all keys: so both sums are over the state as it was.
        if BY_CHANNEL:
            tile *= decay[:, None]
        asked = _total(tile * query[:, None], DK_PAD, COLUMNS)
        added = value
        if DELTA:
            found = _total(tile * key[:, None], DK_PAD, COLUMNS)
            if not BY_CHANNEL:
                found *= decay
            added = value - found
        added *= strength
        if BY_CHANNEL:
            tile += key[:, None] * added[None, :]
        else:
            asked *= decay
            tile = tile * decay + key[:, None] * added[None, :]
        result = asked + tl.sum(query * key, axis=0) * added
        if skip is not None:
            result += tl.load(skip + head) * value
        at = read + (row - most_before) * (HEADS * DV) + head * DV + columns
        tl.store(at, result, mask=wanted & (place >= confirmed))
        if left is not None:
            other = tl.load(left + first + place - confirmed, mask=place >= confirmed, other=-1)
            there = inside[:, None] & wanted[None, :] & (other >= 0)
            tl.store(slots_of + other * state_stride, tile, mask=there)
        row = next_row
        query, key, value, decay, strength = (
            next_query, next_key, next_value, next_decay, next_strength,
        )  # fmt: skip
    return tile


@triton.jit(
    do_not_specialize=["most_before"],
    do_not_specialize_on_alignment=["starts", "contexts", "slots", "counts", "drafts", "left"],
)
def recur(
    mixed, decays, strengths,  # of ``prepare``
    state, state_stride,  # [slots, HEADS, DK, DV] float32
    read,  # [T, HEADS DV] float32
    starts, contexts, slots, counts, drafts,  # [S + 1], [S], [S], [S], [S] int64; None: no drafts
    left,  # [T] int64, another slot for what the state is after a token, -1: none; None: of all
    most_before,
    skip,  # [HEADS] float32, or None
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DK_PAD: tl.constexpr, CHANNELS: tl.constexpr, MOST_DRAFTS: tl.constexpr,
    DELTA: tl.constexpr, BY_CHANNEL: tl.constexpr, TILED: tl.constexpr,
    COLUMNS: tl.constexpr,  # of a head's values, of a program
):  # fmt: skip
    """Program (p, s) takes some columns of a head's state on by the tokens of sequence s."""
    tiles: tl.constexpr = tl.cdiv(DV, COLUMNS)
    head, part = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    seq = tl.program_id(1).to(tl.int64)
    slot, first, new, confirmed, fresh = _sequence(starts, contexts, slots, counts, seq)
    if (slot >= 0) & (new > 0):
        key_head = head % KEY_HEADS if TILED else head // (HEADS // KEY_HEADS)
        keys, columns = tl.arange(0, DK_PAD), part * COLUMNS + tl.arange(0, COLUMNS)
        inside, wanted = keys < DK, columns < DV
        mask = inside[:, None] & wanted[None, :]
        slots_of = state + (head * DK + keys)[:, None] * DV + columns[None, :]
        place = slots_of + slot * state_stride
        tile = tl.load(place, mask=mask & (fresh == 0), other=0.0)
        before, end = seq * MOST_DRAFTS, confirmed + new
        known = end - _of(drafts, seq)
        tile = _run(
            tile, confirmed * 0, known, before, first, confirmed,
            mixed, decays, strengths, read, skip, most_before, head, key_head, keys, inside,
            columns, wanted, left, slots_of, state_stride, HEADS, KEY_HEADS, DK, DV, DK_PAD,
            COLUMNS, CHANNELS, DELTA, BY_CHANNEL,
        )  # fmt: skip
        tl.store(place, tile, mask=mask)
        if MOST_DRAFTS > 0:
            _run(
                tile, known, end, before, first, confirmed,
                mixed, decays, strengths, read, skip, most_before, head, key_head, keys, inside,
                columns, wanted, None, slots_of, state_stride, HEADS, KEY_HEADS, DK, DV, DK_PAD,
                COLUMNS, CHANNELS, DELTA, BY_CHANNEL,
            )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["owners", "slots"])
def gate(
    read,  # [T, OUTPUTS] float32
    x, x_stride,  # [T, columns], where gates begin
    out,  # [T, OUTPUTS]
    norm,  # [OUTPUTS] float32, or None
    eps, factor,
    owners, slots,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
    FIRST: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Program (t, p): outputs of token t that are normalised together; zeros if it pads."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, WIDTH_PAD)
    which, mask = tl.program_id(1) * WIDTH + dims, dims < WIDTH
    there = tl.load(slots + tl.load(owners + token)) >= 0
    result = tl.load(read + token * OUTPUTS + which, mask=mask & there, other=0.0)
    gates = tl.load(x + token * x_stride + which, mask=mask & there, other=0.0).to(tl.float32)
    gates *= factor
    gates = tl.sigmoid(gates) if SIGMOID else _silu(gates)
    if FIRST:
        result *= gates
    if norm is not None:
        result *= tl.rsqrt(tl.sum(result * result, axis=0) / WIDTH + eps)
        result *= tl.load(norm + which, mask=mask, other=0.0)
    if not FIRST:
        result *= gates
    tl.store(out + token * OUTPUTS + which, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["owners", "starts", "contexts", "slots", "counts"])
def convolve(
    x, x_stride,  # [T, 3 CHANNELS]: before, after, values
    inputs, inputs_stride, rows, rows_stride,  # as ``prepare``
    out,  # [T, CHANNELS]
    owners, starts, contexts, slots, counts,
    weight, bias,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, KERNEL: tl.constexpr,
    MOST_DRAFTS: tl.constexpr,
    STEP: tl.constexpr,  # channels of a program
):  # fmt: skip
    """Program (t, p): some channels of token t, between their gates; zeros if it pads."""
    token = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * STEP + tl.arange(0, STEP)
    mask = channels < CHANNELS
    seq = tl.load(owners + token)
    slot, first, _, confirmed, fresh = _sequence(starts, contexts, slots, counts, seq)
    there = mask & (slot >= 0)
    kept = None
    if MOST_DRAFTS > 0:
        kept = inputs + slot * inputs_stride
    found = _convolved(
        x, x_stride, kept, COLUMNS, rows + slot * rows_stride, first, token - first + confirmed,
        confirmed, fresh, channels, there, weight, bias, CHANNELS, KERNEL, True,
    )  # fmt: skip
    after = tl.load(x + token * x_stride + CHANNELS + channels, mask=there, other=0.0)
    found = tl.where(there, found * after.to(tl.float32), 0.0)
    tl.store(out + token * CHANNELS + channels, found.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["starts", "contexts", "slots", "counts", "drafts"])
def keep(
    x, x_stride, inputs, inputs_stride, rows, rows_stride,  # as ``prepare``
    starts, contexts, slots, counts, drafts,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, KERNEL: tl.constexpr,
    MOST_DRAFTS: tl.constexpr, GATED: tl.constexpr,
    STEP: tl.constexpr,  # channels of a program
):  # fmt: skip
    """Program (p, s): the slot of sequence s keeps what its next tokens' convolution sees.

    What is read lies behind what is written.
    """
    channels = tl.program_id(0) * STEP + tl.arange(0, STEP)
    seq = tl.program_id(1).to(tl.int64)
    slot, first, new, confirmed, fresh = _sequence(starts, contexts, slots, counts, seq)
    mask = (channels < CHANNELS) & (slot >= 0) & (new > 0)
    older = rows + slot * rows_stride
    kept = None
    if MOST_DRAFTS > 0:
        kept = inputs + slot * inputs_stride
    known = confirmed + new - _of(drafts, seq)
    for number in tl.static_range(KERNEL - 1):
        seen = _seen(
            x, x_stride, kept, COLUMNS, older, first, known + (number - (KERNEL - 1)), confirmed,
            fresh, channels, mask, CHANNELS, KERNEL, GATED,
        )  # fmt: skip
        tl.store(older + number * CHANNELS + channels, seen, mask=mask)


@triton.jit(
    do_not_specialize_on_alignment=["owners", "left", "starts", "contexts", "slots", "counts"]
)
def keep_left(
    x, x_stride, inputs, inputs_stride, rows, rows_stride,  # as ``prepare``
    owners, left,  # [T] int64, as ``recur``
    starts, contexts, slots, counts,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, KERNEL: tl.constexpr,
    MOST_DRAFTS: tl.constexpr, GATED: tl.constexpr,
    STEP: tl.constexpr,  # channels of a program
):  # fmt: skip
    """Program (p, t): the slot that is left the state after token t keeps what goes with it.

    Before ``keep`` writes over what is read.
    """
    token = tl.program_id(1).to(tl.int64)
    other = tl.load(left + token)
    if other >= 0:
        channels = tl.program_id(0) * STEP + tl.arange(0, STEP)
        seq = tl.load(owners + token)
        slot, first, _, confirmed, fresh = _sequence(starts, contexts, slots, counts, seq)
        mask = (channels < CHANNELS) & (slot >= 0)
        kept = None
        if MOST_DRAFTS > 0:
            kept = inputs + slot * inputs_stride
        after = token - first + confirmed + 1
        for number in tl.static_range(KERNEL - 1):
            seen = _seen(
                x, x_stride, kept, COLUMNS, rows + slot * rows_stride, first,
                after + (number - (KERNEL - 1)), confirmed, fresh, channels, mask, CHANNELS,
                KERNEL, GATED,
            )  # fmt: skip
            target = rows + other * rows_stride + number * CHANNELS + channels
            tl.store(target, seen, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["starts", "slots", "drafts"])
def keep_drafts(
    x, x_stride,
    inputs, inputs_stride,  # [slots, most drafts, COLUMNS] float32
    starts, slots, drafts,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,  # columns of a program
):  # fmt: skip
    """Program (p, s): the slot of sequence s keeps what came in for its drafts, its last tokens."""
    columns = tl.program_id(0) * STEP + tl.arange(0, STEP)
    seq = tl.program_id(1).to(tl.int64)
    slot, count = tl.load(slots + seq), tl.load(drafts + seq)
    if slot >= 0:
        first = tl.load(starts + seq + 1) - count
        for number in range(count):
            mask = columns < COLUMNS
            found = tl.load(x + (first + number) * x_stride + columns, mask=mask)
            target = inputs + slot * inputs_stride + number * COLUMNS + columns
            tl.store(target, found.to(tl.float32), mask=mask)
