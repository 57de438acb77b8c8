"""What requests do to the logits before a token is chosen, in vLLM's order.

What guides the text (a grammar, the end of reasoning), allowed_token_ids, then bans (bad_words, and
whatever would end the text before min_tokens), then logit_bias, repetition_penalty, and the
frequency and presence penalties. All but the first two touch few of a row's logits, so the edits of
the whole batch are gathered first and carried out together, one indexed operation a kind. Token ids
outside the vocabulary are passed over.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.execution.sampling.rows import (
    FLOAT32,
    Mask,
    SampleRow,
    clamp_positive,
    guided,
    to_device,
)
from quire.kernels.plain import allow

_IN_ORDER = torch.contiguous_format
_LOOKS_A_WORD = 10  # a bad word that is looked for takes as long as so many edits


Allow = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Edits:
    """Places in a batch of logits [R, V], gathered row by row, with a number for each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.lengths: list[int] = []  # places in each of those rows
        self.token_ids = array("q")
        self.values = array("f")

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, row: int, token_ids: Iterable[int], values: Iterable[float]) -> None:
        """Add edits of a row. Arrays are taken over whole."""
        known = len(self.token_ids)
        self.token_ids.extend(token_ids)
        self.values.extend(values)
        self.rows.append(row)
        self.lengths.append(len(self.token_ids) - known)

    def add_same(self, row: int, token_ids: Collection[int], value: float) -> None:
        if len(token_ids):  # a prompt of vectors has none
            self.add(row, token_ids, array("f", [value]) * len(token_ids))

    def row_indices(self, logits: Tensor) -> Tensor:
        return to_device(torch.tensor(self.rows), logits.device)

    def tensors(self, logits: Tensor) -> _Places:
        vocab_size, device = logits.shape[1], logits.device
        token_ids = torch.frombuffer(self.token_ids, dtype=torch.int64)
        values = torch.frombuffer(self.values, dtype=torch.float32)
        lengths = torch.tensor(self.lengths)
        numbers = torch.arange(len(lengths)).repeat_interleave(lengths)
        places = torch.tensor(self.rows)[numbers] * vocab_size + token_ids
        known = token_ids < vocab_size
        return _Places(
            to_device(places[known], device),
            to_device(values[known], device),
            to_device(numbers[known], device),
        )


class _Places(NamedTuple):
    """One element a place, on the logits' device."""

    indices: Tensor  # into the flattened logits
    values: Tensor
    numbers: Tensor  # of the place's row among ``_Edits.rows``


class _BatchEdits(NamedTuple):
    allowed: _Edits
    banned: _Edits
    biases: _Edits
    repetitions: _Edits
    counts: _Edits


def process_logits(logits: Tensor, rows: Sequence[SampleRow], masked: Allow = allow) -> Tensor:
    """The logits [R, V] as the requests change them: a copy, or ``logits`` if none does.

    masked: a ``Kernels.allow``.

    Bad words and min_tokens yield where they would forbid every token. Does not wait for the
    logits.
    """
    if not any(row.params.edits_logits for row in rows):
        return logits
    edits, masks = _gather(rows), guided(rows)
    if not any(edits) and not masks:
        return logits
    if masks:
        bits, numbers = torch.from_numpy(stacked(masks).view(np.int32)), torch.tensor([*masks])
        edited = masked(logits, *(to_device(x, logits.device) for x in (bits, numbers)))
    else:
        edited = logits.clone(memory_format=_IN_ORDER)
    flat = edited.view(-1)  # the same memory
    # Where one place is written twice, as repetitions may, it is with the same value.
    if edits.allowed:
        places = edits.allowed.tensors(logits).indices
        kept = flat[places]
        edited.index_fill_(0, edits.allowed.row_indices(logits), -torch.inf)
        flat[places] = kept
    if edits.banned:
        _ban(edited, edits.banned)
    if edits.biases:
        places, values, _ = edits.biases.tensors(logits)
        flat[places] += values
    if edits.repetitions:
        places, values, _ = edits.repetitions.tensors(logits)
        flat[places] = _penalise_repetition(flat[places], values)
    if edits.counts:
        places, values, _ = edits.counts.tensors(logits)
        flat[places] -= values
    return edited


def num_edits(row: SampleRow) -> int:
    """About how many logits of a row are edited."""
    params, past = row.params, row.past
    edits = 1 + len(params.logit_bias or ()) + len(params.allowed_token_ids or ())
    if past is not None and params.repetition_penalty != 1.0:
        edits += len(past.prompt)
    return edits + _LOOKS_A_WORD * len(row.request.bad_word_ids)


def stacked(masks: Mapping[int, Mask]) -> Mask:
    """One after the other: [N, words]."""
    return np.stack(list(masks.values()))


def _ban(edited: Tensor, bans: _Edits) -> None:
    """Forbid the tokens of ``bans``, but none in a row where nothing else is possible."""
    places, values, numbers = bans.tensors(edited)
    flat = edited.view(-1)
    kept = flat[places]
    flat[places] = values
    stuck = edited[bans.row_indices(edited)].amax(-1) == -torch.inf
    flat[places] = torch.where(stuck[numbers], kept, values)


def _gather(rows: Sequence[SampleRow]) -> _BatchEdits:
    edits = _BatchEdits(*(_Edits() for _ in _BatchEdits._fields))
    for i, row in enumerate(rows):
        params = row.params
        if not params.edits_some_logits:
            continue
        if params.allowed_token_ids is not None:
            edits.allowed.add(i, *params.allowed_logits)
        if forbidden := _forbidden(row):
            edits.banned.add_same(i, forbidden, -math.inf)
        if params.logit_bias:
            edits.biases.add(i, *params.biased_logits)
        if row.past is None:
            continue
        repetition = params.repetition_penalty
        frequency, presence = params.frequency_penalty, params.presence_penalty
        if repetition == 1.0 and not frequency and not presence:
            continue
        counts = row.past.counts(row.num_output_tokens)
        if repetition != 1.0:
            factor = clamp_positive(repetition)
            edits.repetitions.add_same(i, row.past.prompt, factor)
            edits.repetitions.add_same(i, counts.token_ids, factor)
        if (frequency or presence) and counts.token_ids:
            values = np.frombuffer(counts.counts, np.float32) * frequency + presence
            edits.counts.add(i, counts.token_ids, array("f", values.tobytes()))
    return edits


def _forbidden(row: SampleRow) -> set[int]:
    """Tokens that would complete a bad word, or end the text too early."""
    request = row.request
    forbidden: set[int] = set()
    if row.num_output_tokens < row.params.min_tokens:
        forbidden.update(request.eos_token_ids, row.params.stop_token_ids)
    if request.bad_word_ids and row.past is not None:
        words, length = request.bad_words_after, row.num_output_tokens
        forbidden.update(word[-1] for word in words.get(None, ()))
        for word in words.get(row.past.last(length), ()) if length else ():
            if row.past.ends_with(word[:-1], length):
                forbidden.add(word[-1])
    return forbidden


def _penalise_repetition(logits: Tensor, penalties: Tensor) -> Tensor:
    """Keskar et al., "CTRL", 2019, section 4.1, made symmetric for negative logits."""
    changed = torch.where(logits > 0, logits / penalties, logits * penalties)
    # An extreme penalty must neither unban a token nor, by overflow, ban one.
    changed = changed.clamp(-FLOAT32.max, FLOAT32.max)
    return torch.where(logits.isinf(), logits, changed)
