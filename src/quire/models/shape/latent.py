"""Latent attention (MLA), as DeepSeek-V2 has it: keys and values of all heads from one vector."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.shape.fields import WIDEST, ConfigFields


@dataclass(frozen=True)
class LatentShape:
    """Widths. What is cached of a token in a layer is one vector of ``kv_rank + rope`` numbers."""

    kv_rank: int
    query_rank: int | None  # of what queries are made of; None: of the hidden state itself
    nope: int  # of a head's query and key, without positions
    rope: int  # with positions: of each query, and of one key for all heads
    value: int  # of a head

    @property
    def width(self) -> int:
        """Numbers that are kept of a token in a layer."""
        return self.kv_rank + self.rope

    def params(self, hidden: int, heads: int) -> int:
        """Parameters of a layer's attention."""
        queries = heads * (self.nope + self.rope)
        down = 0 if self.query_rank is None else (hidden + 1) * self.query_rank
        up = (self.query_rank or hidden) * queries
        latent = hidden * self.width + self.kv_rank  # and its norm
        return down + up + latent + self._expansion(heads) + heads * self.value * hidden

    def shared_params(self, hidden: int) -> int:
        """Parameters before all heads, which each machine of a tensor-parallel group keeps."""
        return hidden * (self.width + (self.query_rank or 0))

    def flops_per_pair(self, heads: int) -> int:
        """Operations of a prompt, whose keys and values are computed from the latents first."""
        return 2 * heads * (self.nope + self.rope + self.value)

    def flops_per_decode_pair(self, heads: int) -> int:
        """Operations of a query that attends to the latents themselves, with their expansion taken
        into it.
        """
        return 2 * heads * (self.width + self.kv_rank)

    def flops_per_expansion(self, heads: int) -> int:
        """Operations for a token's keys and values of all heads."""
        return 2 * self._expansion(heads)

    def _expansion(self, heads: int) -> int:
        return self.kv_rank * heads * (self.nope + self.value)


@dataclass(frozen=True)
class IndexShape:
    """An index, by which a token chooses those that it attends to: a key beside each latent."""

    heads: int
    width: int  # of a key, and of a head's query
    most: int  # tokens that one attends to
    layers: tuple[bool, ...]  # which have one; the others attend to what the last one has chosen

    def params(self, hidden: int, query_rank: int) -> int:
        """Parameters of one."""
        norm = 2 * self.width
        return self.heads * (self.width * query_rank + hidden) + self.width * hidden + norm

    @property
    def flops_per_pair(self) -> int:
        """Operations for the score of a token for another."""
        return 2 * self.heads * (self.width + 1)


_SCHEDULE = {"F": "full", "S": "shared"}


def index_of(fields: ConfigFields, num_layers: int) -> IndexShape:
    """The index of a model that has one. ModelError: a size of it is wrong, or missing."""
    shape = IndexShape(
        heads=fields.positive("index_n_heads"),
        width=fields.positive("index_head_dim"),
        most=fields.positive("index_topk"),
        layers=_with_index(fields, num_layers),
    )
    if shape.heads * shape.width > WIDEST:
        raise fields.wrong("index_n_heads", f"of at most {WIDEST:,} numbers in all heads")
    if shape.width < fields.positive("qk_rope_head_dim"):
        raise fields.wrong("index_head_dim", "at least qk_rope_head_dim, which positions turn")
    if "q_lora_rank" not in fields:
        raise fields.wrong("q_lora_rank", "given where there is an index")
    return shape


def _with_index(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    kinds = fields.get("indexer_types", list, [])
    name = "indexer_types" if kinds else "index_topk_pattern"
    if not kinds and name in fields:
        pattern = fields.values[name]
        if not isinstance(pattern, str | list):
            raise fields.wrong(name, "letters or a list")
        kinds = [_SCHEDULE.get(str(one), one) for one in pattern]
    if not kinds:
        every = max(1, fields.get("index_topk_freq", int, 1))
        first = fields.get("index_skip_topk_offset", int, 2)
        return tuple(max(0, layer - first + 1) % every == 0 for layer in range(num_layers))
    if len(kinds) != num_layers or not {"full", "shared"}.issuperset(map(str, kinds)):
        raise fields.wrong(name, f"full or shared for each of {num_layers} layers")
    if kinds[0] == "shared":
        raise fields.wrong(name, "full in the first layer")
    return tuple(kind == "full" for kind in kinds)


def latent_of(fields: ConfigFields) -> LatentShape:
    """The latents of a model that has some. ModelError: a width is wrong, or missing."""
    heads = fields.get("num_attention_heads", int, 0)
    shape = LatentShape(
        kv_rank=fields.positive("kv_lora_rank"),
        query_rank=fields.positive("q_lora_rank") if "q_lora_rank" in fields else None,
        nope=fields.positive("qk_nope_head_dim"),
        rope=fields.positive("qk_rope_head_dim"),
        value=fields.positive("v_head_dim", fields.get("hidden_size", int, 0) // max(heads, 1)),
    )
    widths = {
        "kv_lora_rank": shape.width,
        "q_lora_rank": shape.query_rank or 0,
        "qk_nope_head_dim": heads * (shape.nope + shape.rope),
        "v_head_dim": heads * shape.value,
    }
    for name, width in widths.items():
        if width > WIDEST:
            raise fields.wrong(name, f"of at most {WIDEST:,} numbers in all heads")
    return shape
