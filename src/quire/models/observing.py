"""How large the inputs of a model's products are, seen while it reads tokens at random.

What a weight loses matters as much as the input that it multiplies is large, and in trained models
some channels are ten times larger than others, whatever is read. Tokens at random show them nearly
as well as a text does: they need no tokenizer, and are the same for every rank and every start.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, LayerKV, LayerState, StateShape
from quire.kernels.ops import AttentionBatch, Kernels, KVGroupTables, StateSlots
from quire.models.adaptable import products
from quire.models.decoder import DecoderModel
from quire.models.linear import Linear, Multiplied, PlainLinear, WatchedLinear
from quire.models.linear.base import mean_squares
from quire.models.parts import ALL

_TOKENS, _BLOCK_SIZE = 256, 16


def observe(model: DecoderModel, instruction_set: str = "") -> dict[str, Multiplied]:
    """Mean squares of each projection's inputs, by its name; none of a model that keeps states."""
    if not all(isinstance(shape, KVShape) for shape in model.kv_shapes):
        return {}
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.vocab_size, (_TOKENS,), generator=generator)
    hidden = read_tokens(model, token_ids, choose_kernels(model.dtype, instruction_set))
    found = dict[str, Multiplied]()
    for layer in model.decoder.layers:
        for _, product in products(layer):
            assert isinstance(product, WatchedLinear)
            found.update(_of(model, product, product.inputs / len(hidden), product.weights))
    head = model.decoder.head
    assert isinstance(head, PlainLinear)
    found.update(_of(model, head, mean_squares(hidden), mean_squares(head.weight)))
    return found


def _of(
    model: DecoderModel, product: Linear, inputs: Tensor, weights: Tensor
) -> Iterator[tuple[str, Multiplied]]:
    """What was seen of a product, by its parts' names. inputs, weights: mean squares of its own."""
    columns, ranks = model.named[id(product)].columns, model.decoder.ranks
    seen = torch.zeros(2, model.named[id(product)].inputs)
    seen[:, columns] = torch.stack([inputs, weights])
    if ranks is not None:
        ranks.add_up(seen)
        if columns is ALL:  # each has seen all inputs
            seen /= ranks.size
    multiplied = Multiplied.of(*seen)
    return ((part.name, multiplied) for part in model.named[id(product)].parts)


def read_tokens(model: DecoderModel, token_ids: Tensor, kernels: Kernels) -> Tensor:
    """Let the model read a text, as one prompt -> [T, d], what the head multiplies.

    As far as it has learned positions; how long texts may be here changes nothing.
    """
    if model.decoder.positions is not None:
        table, offset = model.decoder.positions
        token_ids = token_ids[: len(table) - offset]
    length = len(token_ids)
    blocks = -(-length // _BLOCK_SIZE)

    def pool(shape: KVShape) -> LayerKV:
        tile = (blocks, shape.num_kv_heads, _BLOCK_SIZE)
        return LayerKV.of(shape, lambda numbers: torch.zeros(*tile, numbers, dtype=model.dtype))

    def slot(shape: StateShape) -> LayerState:
        sizes = (shape.rows, shape.state or (0,), (0, shape.columns))
        return LayerState(*(torch.zeros(1, *size) for size in sizes))

    kv = [pool(one) if isinstance(one, KVShape) else slot(one) for one in model.kv_shapes]
    positions, start = torch.arange(length), torch.zeros(1, dtype=torch.long)
    batch = AttentionBatch(
        positions=positions,
        query_starts=(0, length),
        context_lens=torch.tensor([length]),
        output_starts=torch.tensor([length]),
        kv_groups=(KVGroupTables(positions, torch.arange(blocks)[None], start),),
        block_size=_BLOCK_SIZE,
        states=StateSlots(start),
    )
    with torch.inference_mode():
        return model.forward(token_ids, batch, kv, kernels)
