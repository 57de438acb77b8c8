"""How large the inputs of a model's products are, seen while it reads tokens at random.

What a weight loses matters as much as the input that it multiplies is large, and in trained models
some channels are ten times larger than others, whatever is read. Tokens at random show them nearly
as well as a text does: they need no tokenizer, and are the same for every rank and every start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.dispatch import choose_kernels
from quire.kernels.ops import AttentionBatch, Kernels, KVGroupTables, KVShape, LayerKV, LayerState
from quire.models.adaptable import products
from quire.models.decoder import DecoderModel
from quire.models.linear import WatchedLinear

_TOKENS, _BLOCK_SIZE = 256, 16
_LEAST = 2.0**-16  # of the most important input


def observe(model: DecoderModel, instruction_set: str = "") -> dict[str, Tensor]:
    """The importance of a projection's inputs, by its name -> [in] float32.

    These are their mean squares beside the largest, as powers of two, so that an order of additions
    seldom shows. The head has none, nor has a model that keeps states.
    """
    if not all(isinstance(shape, KVShape) for shape in model.kv_shapes):
        return {}
    length, ranks = min(_TOKENS, model.max_positions), model.decoder.ranks
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.vocab_size, (length,), generator=generator)
    read_tokens(model, token_ids, choose_kernels(model.dtype, instruction_set))
    found = dict[str, Tensor]()
    for layer in model.decoder.layers:
        for _, product in products(layer):
            assert isinstance(product, WatchedLinear)
            inputs, columns, parts = model.named[id(product)]
            squares = torch.zeros(inputs)
            squares[columns] = product.squares
            if ranks is not None and len(product.squares) < inputs:
                ranks.add_up(squares)
            found.update((part.name, _importance(squares)) for part in parts)
    return found


def _importance(squares: Tensor) -> Tensor:
    largest = squares.max()
    if not 0 < largest < torch.inf:  # nor is NaN
        return torch.ones_like(squares)
    return torch.exp2((squares / largest).clamp_min(_LEAST).log2().round())


def read_tokens(model: DecoderModel, token_ids: Tensor, kernels: Kernels) -> None:
    """Let the model read a text, as one prompt."""
    length = len(token_ids)
    blocks = -(-length // _BLOCK_SIZE)

    def pool(heads: int, dim: int) -> Tensor:
        return torch.zeros(blocks, heads, _BLOCK_SIZE, dim, dtype=model.dtype)

    kv = [
        LayerKV(pool(shape.num_kv_heads, shape.key_dim), pool(shape.num_kv_heads, shape.value_dim))
        if isinstance(shape, KVShape)
        else LayerState(torch.zeros(1, *shape.rows), torch.zeros(1, *(shape.state or (0,))))
        for shape in model.kv_shapes
    ]
    positions, start = torch.arange(length), torch.zeros(1, dtype=torch.long)
    batch = AttentionBatch(
        positions=positions,
        query_starts=(0, length),
        context_lens=torch.tensor([length]),
        output_starts=torch.tensor([length]),
        kv_groups=(KVGroupTables(positions, torch.arange(blocks)[None], start),),
        block_size=_BLOCK_SIZE,
        state_slots=start,
    )
    with torch.inference_mode():
        model.forward(token_ids, batch, kv, kernels)
