"""Does a model compute through block tables what its architecture computes by itself?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.ops import AttentionBatch, Kernels, KVGroupTables
from quire.models.base import Model
from quire.models.transformers_choices import Choices

# Two texts, side by side in two steps: first a long and a short prompt chunk, then the rest, which
# is a token of one text and a chunk of the other.
_LENGTH = 8
_FIRST_STEP = (7, 5)
_BLOCK_SIZE = 4
_TABLES = ((3, 1), (0, 2))

# Norm of the difference over norm of the centred logits. For rounding: computing something else
# gives errors near 1.
_ROUNDED = 0.3  # of parts of weights, each rounded by itself
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def sample_texts(vocab_size: int) -> Tensor:
    """Token ids [texts, length]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (len(_TABLES), _LENGTH), generator=generator)


def check_against(
    model: Model,
    texts: Tensor,
    expected: Tensor,
    choices: Choices,
    kernels: Kernels,
    *,
    rounded: bool = False,
) -> None:
    """Compare with the logits [texts, length, vocab] that ``expected`` has for ``texts``.

    choices: of experts, as they were made for these logits. rounded: otherwise than for these.

    Raises:
        ModelError: they differ by more than rounding.
    """
    kv = _memory(model)
    for starts, stops in (((0, 0), _FIRST_STEP), (_FIRST_STEP, (_LENGTH, _LENGTH))):
        new = [slice(*bounds) for bounds in zip(starts, stops, strict=True)]
        token_ids = torch.cat([text[part] for text, part in zip(texts, new, strict=True)])
        wanted = torch.cat([rows[part] for rows, part in zip(expected, new, strict=True)])
        rows = [torch.arange(_LENGTH)[part] + n * _LENGTH for n, part in enumerate(new)]
        with choices.made_again(torch.cat(rows)):
            hidden = model.forward(token_ids, _batch(new), kv, kernels)
        got = model.logits(hidden)
        centred = wanted - wanted.mean(dim=1, keepdim=True)
        error = float((got - wanted).norm() / centred.norm())
        if not error <= (_ROUNDED if rounded else _TOLERANCE[model.dtype]):  # nor is NaN
            raise ModelError(
                "its logits through paged attention differ from its own by "
                f"{error:.2g} of their norm"
            )


def run_far(model: Model, texts: Tensor, kernels: Kernels) -> None:
    """Let a model compute the texts as if they stood at later positions, up to the last.

    What its code does of positions it does, though no keys of earlier ones are there.
    """
    whole = [slice(0, _LENGTH)] * len(texts)
    for first in (model.max_positions // 2, model.max_positions - _LENGTH):
        batch = _batch(whole)
        batch = replace(batch, positions=batch.positions + max(first, 0))
        model.forward(texts.flatten(), batch, _memory(model), kernels)


def _memory(model: Model) -> list[LayerKV]:
    return [
        LayerKV(
            torch.zeros(4, shape.num_kv_heads, _BLOCK_SIZE, shape.key_dim, dtype=model.dtype),
            torch.zeros(4, shape.num_kv_heads, _BLOCK_SIZE, shape.value_dim, dtype=model.dtype),
        )
        for shape in model.kv_shapes
        if isinstance(shape, KVShape)  # what transformers computes keeps nothing else
    ]


def _batch(new: Sequence[slice]) -> AttentionBatch:
    """Each text goes on from the start of its slice to the stop."""
    positions = [torch.arange(part.start, part.stop) for part in new]
    tables = torch.tensor(_TABLES)
    slots = [
        table[where // _BLOCK_SIZE] * _BLOCK_SIZE + where % _BLOCK_SIZE
        for table, where in zip(tables, positions, strict=True)
    ]
    counts = torch.tensor([0, *map(len, positions)])
    return AttentionBatch(
        positions=torch.cat(positions),
        query_starts=tuple(counts.cumsum(0).tolist()),
        context_lens=torch.tensor([part.stop for part in new]),
        output_starts=torch.full((len(new),), _LENGTH),
        kv_groups=(
            KVGroupTables(torch.cat(slots), tables, torch.zeros(len(tables), dtype=torch.long)),
        ),
        block_size=_BLOCK_SIZE,
    )
