"""The Llama family: pre-norm decoders with RMSNorm, rotary embeddings and gated MLPs.

What tells its members apart is in their configs, or in ``_TRAITS`` where ``transformers`` has it
in code. Tensors are named as in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quire.errors import ModelError
from quire.kernels.ops import ACTIVATIONS, AttentionSpec, KVShape, Norm, Norms
from quire.model.config import Fields, ModelConfig
from quire.model.decoder import MLP, Attention, Decoder, Layer
from quire.model.family import Family
from quire.model.linear import Joined, LinearReader
from quire.model.rope import RopeConfig
from quire.model.weights import Weights


@dataclass(frozen=True)
class _Traits:
    """What an architecture does that its config does not say."""

    qkv_bias: bool | None = None  # None: as ``attention_bias`` says
    head_dim: int | None = None  # where the config has none; None: hidden_size / heads
    qk_norm: bool = False  # queries and keys are normalised, head by head
    fused: bool = False  # one tensor for q, k and v, and one for gate and up
    window: Literal["never", "always", "if_used"] = "never"  # whether ``sliding_window`` counts
    partial_rotary: bool = False


_TRAITS: Mapping[str, _Traits] = {
    "LlamaForCausalLM": _Traits(),
    "MistralForCausalLM": _Traits(qkv_bias=False, window="always"),
    "Phi3ForCausalLM": _Traits(qkv_bias=False, fused=True, window="always", partial_rotary=True),
    "Qwen2ForCausalLM": _Traits(qkv_bias=True, window="if_used"),
    "Qwen3ForCausalLM": _Traits(head_dim=128, qk_norm=True, window="if_used"),
}


@dataclass(frozen=True)
class LlamaConfig:
    """A member of the family, its defaults filled in."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]  # by layer
    norm_eps: float
    activation: str
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    fused: bool
    rope: RopeConfig

    @property
    def max_position_embeddings(self) -> int:
        """See ``FamilyConfig``."""
        return self.rope.max_position_embeddings

    @classmethod
    def read(cls, config: ModelConfig) -> LlamaConfig:
        """Read config.json.

        Raises:
            ModelError: a field is missing, of the wrong type, or contradicts another.
        """
        fields, traits = config.fields, _TRAITS[config.architecture]
        hidden_size = fields.positive("hidden_size")
        num_heads = fields.positive("num_attention_heads")
        num_kv_heads = fields.positive("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise ModelError(
                f"{fields.source}: num_attention_heads ({num_heads}) is not a multiple of "
                f"num_key_value_heads ({num_kv_heads})"
            )
        head_dim = fields.positive("head_dim", traits.head_dim or hidden_size // num_heads)
        rope = RopeConfig.read(fields, head_dim)
        if rope.rotated != head_dim and not traits.partial_rotary:
            raise ModelError(
                f"{fields.source}: {config.architecture} has no partial_rotary_factor other than 1"
            )
        attention_bias = traits.qkv_bias is None and fields.get("attention_bias", bool, False)
        return cls(
            vocab_size=fields.positive("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.positive("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            windows=_windows(fields, traits),
            norm_eps=fields.get("rms_norm_eps", float),
            activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            tied_embeddings=fields.get("tie_word_embeddings", bool, False),
            qkv_bias=traits.qkv_bias or attention_bias,
            output_bias=attention_bias,
            mlp_bias=fields.get("mlp_bias", bool, False),
            qk_norm=traits.qk_norm,
            fused=traits.fused,
            rope=rope,
        )


def _windows(fields: Fields, traits: _Traits) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    layers = fields.positive("num_hidden_layers")
    if traits.window == "never" or "sliding_window" not in fields:
        return (None,) * layers
    window = fields.positive("sliding_window")
    if traits.window == "always":
        return (window,) * layers
    if not fields.get("use_sliding_window", bool, False):
        return (None,) * layers
    types = fields.get("layer_types", list, [])
    if types:
        if len(types) != layers or not {"full_attention", "sliding_attention"}.issuperset(types):
            raise ModelError(
                f"{fields.source}: layer_types must name full_attention or sliding_attention for "
                f"each of {layers} layers, but is {types}"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = fields.get("max_window_layers", int, 28)
    return tuple(window if layer >= first else None for layer in range(layers))


def _build(config: LlamaConfig, weights: Weights, linears: LinearReader) -> Decoder:
    rope = config.rope.build(weights.device)  # or no tensor need be read
    embed, head = linears.embedding_and_head(
        "model.embed_tokens.weight",
        "lm_head.weight",
        (config.vocab_size, config.hidden_size),
        config.tied_embeddings,
    )
    return Decoder(
        vocab_size=config.vocab_size,
        dtype=weights.dtype,
        embed=embed,
        layers=tuple(
            _read_layer(config, weights, linears, f"model.layers.{index}", window)
            for index, window in enumerate(config.windows)
        ),
        final_norm=_read_norm(config, weights, "model.norm", config.hidden_size),
        head=head,
        ropes=(rope,),
    )


def _read_layer(
    config: LlamaConfig, weights: Weights, linears: LinearReader, prefix: str, window: int | None
) -> Layer:
    hidden, head_dim = config.hidden_size, config.head_dim
    attention = f"{prefix}.self_attn"

    def norm(name: str, width: int = hidden) -> Norm:
        return _read_norm(config, weights, f"{prefix}.{name}", width)

    return Layer(
        attention=Attention(
            qkv=_read_qkv(config, linears, attention),
            output=linears.linear(
                f"{attention}.o_proj", config.num_heads * head_dim, hidden, config.output_bias
            ),
            kv=KVShape(config.num_kv_heads, head_dim, head_dim),
            spec=AttentionSpec(
                scale=head_dim**-0.5,
                window=window,
                query_norm=norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
                key_norm=norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
            ),
            rope=0,
        ),
        attention_norms=Norms(before=norm("input_layernorm")),
        mlp=_read_mlp(config, linears, f"{prefix}.mlp"),
        mlp_norms=Norms(before=norm("post_attention_layernorm")),
    )


def _read_norm(config: LlamaConfig, weights: Weights, name: str, width: int) -> Norm:
    return Norm(width, weights.take(f"{name}.weight", width), config.norm_eps)


def _read_qkv(config: LlamaConfig, linears: LinearReader, prefix: str) -> Joined:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"q": query, "k": key, "v": key}
    names = [f"{prefix}.{name}_proj" for name in (["qkv"] if config.fused else parts)]
    return linears.joined(names, config.hidden_size, parts, config.qkv_bias)


def _read_mlp(config: LlamaConfig, linears: LinearReader, prefix: str) -> MLP:
    inner, hidden, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
    parts = {"gate": inner, "up": inner}
    names = [f"{prefix}.{name}_proj" for name in (["gate_up"] if config.fused else parts)]
    return MLP(
        up=linears.joined(names, hidden, parts, bias),
        down=linears.linear(f"{prefix}.down_proj", inner, hidden, bias),
        activation=config.activation,
    )


FAMILY = Family(tuple(_TRAITS), LlamaConfig.read, _build)
