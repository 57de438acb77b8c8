"""What computing takes of memory beside weights and pool: one rule for engines and for plans."""

from __future__ import annotations

from math import prod

from quire.capabilities.adapters.config import AdapterShare
from quire.engine.config import EngineConfig
from quire.models.shape import ModelShape, modules_of

REQUESTS = 64 << 20
"""Bytes of main memory for the tokenizer and for requests, at the least."""

DEVICE = 512 << 20
"""Bytes of a GPU for its libraries and for recorded decode steps, as vLLM's logs tell them: 0.2 to
0.4 GiB each."""

STATES, INNER = 5, 3
"""A layer's states, and those within its MLP, that are there at once."""

_GIVEN = 3  # of what layers are given beside: looked up, projected, and their sum
_STREAMS = 6  # of what goes through layers as several: as it is, twice in float32, and made anew
_PLACE = 4  # numbers of 16 bits, in which a place is told
_LOGIT_BYTES = 16  # a logit, edited, and sorted with its place


def step_bytes(
    config: EngineConfig, tokens: int, numbers: float, vocab_size: int, float_bytes: int
) -> int:
    """Of a step of that many tokens, with logits for all sequences and their drafts.

    numbers: of a token that are there at once, each of ``float_bytes``.
    """
    rows = min(tokens, config.max_num_seqs * _rows_of_each(config))
    return int(tokens * numbers) * float_bytes + rows * vocab_size * _LOGIT_BYTES


def numbers_per_token(shape: ModelShape, machines: int = 1, widest: int = 0) -> float:
    """That are there at once on each machine while a layer is computed.

    widest: of a layer's keys and values, or of what its state is made of, where that is known.
    """
    inner = shape.intermediate_size
    if shape.experts is not None:
        inner = max(inner, shape.experts.inner * shape.experts.chosen + shape.experts.shared_inner)
    queries = shape.num_heads * shape.head_size
    keys_and_values = 2 * shape.num_kv_heads * shape.head_size
    if shape.latent is not None:  # queries as they attend, and the latents that they find
        queries = shape.num_heads * (shape.latent.nope + shape.latent.rope)
        keys_and_values = shape.num_heads * (shape.latent.width + shape.latent.kv_rank)
    beside = 0
    if shape.by_layer is not None:
        sizes = shape.by_layer
        inner = max(inner, *sizes.inners)
        queries = shape.num_heads * max(sizes.head_sizes)
        kept = zip(sizes.kv_heads, map(sum, sizes.widths), strict=True)
        keys_and_values = max(map(prod, kept))
        beside = _GIVEN * shape.num_layers * sizes.given
        if sizes.streams > 1:
            beside += _STREAMS * sizes.streams * shape.hidden_size
    if shape.index is not None:  # queries of its own, and the places that they choose
        beside += shape.index.heads * shape.index.width
        beside += _PLACE * min(shape.index.most, shape.max_positions)
    divided = INNER * inner + 2 * queries + max(widest, keys_and_values)
    return STATES * shape.hidden_size + beside + divided / machines


def adapter_share(
    shape: ModelShape, config: EngineConfig, float_bytes: int, *, rescaled: bool = True
) -> AdapterShare | None:
    """The most that adapters take; None: there are none.

    rescaled: each output has a gain and a shift in float32, as in Quire.
    """
    if not config.enable_lora:
        return None
    rank = config.max_lora_rank
    adapted = [one for one in modules_of(shape) if one.part in ("attention", "mlp")]
    pairs = sum(module.inputs + module.outputs for module in adapted)
    beside = 2 * 4 * sum(module.outputs for module in adapted) if rescaled else 0
    kept = config.max_cpu_loras or config.max_loras
    return AdapterShare(config.max_loras, kept, rank, rank * pairs * float_bytes + beside)


def _rows_of_each(config: EngineConfig) -> int:
    """Rows of logits: one of the sequence, and one for each draft."""
    return 1 if config.speculation is None else 1 + config.speculation.num_speculative_tokens
