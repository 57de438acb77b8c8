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
