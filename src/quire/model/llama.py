"""The Llama family: pre-norm decoders with RMSNorm, rotary embeddings and gated MLPs.

What tells its members apart is in their configs, or in ``_TRAITS`` where ``transformers`` has it
in code. Tensors are named as in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from quire.errors import ConfigError, ModelError
from quire.kernels.ops import (
    ACTIVATIONS,
    AttentionBatch,
    AttentionSpec,
    Decoder,
    DecoderLayer,
    Kernels,
    KVShape,
    LayerKV,
    Norm,
)
from quire.model.base import Streaming, checked_max_positions
from quire.model.config import Fields, ModelConfig
from quire.model.linear import Linear, LinearReader, PlainLinear
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

ARCHITECTURES = tuple(_TRAITS)


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


class LlamaModel:
    """A ``Model`` of the Llama family."""

    replayable = True

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        linears: LinearReader,
        max_model_len: int | None,
        streaming: Streaming | None = None,
    ) -> None:
        """Take the family's tensors from ``weights``.

        Raises:
            ModelError: see ``LlamaConfig.read``, ``Weights.take`` and ``checked_max_positions``.
            ConfigError: the model cannot attend as ``streaming`` says.
        """
        llama = LlamaConfig.read(config)
        if streaming is not None:
            _refuse_to_stream(llama, streaming)
            llama = replace(llama, windows=(streaming.window,) * len(llama.windows))
        self.vocab_size = llama.vocab_size
        self.eos_token_ids = config.eos_token_ids
        self.dtype = weights.dtype
        self.max_positions = checked_max_positions(
            max_model_len, llama.rope.max_position_embeddings, llama.rope.limit
        )
        self.kv_shapes = (KVShape(llama.num_kv_heads, llama.head_dim, llama.head_dim),) * len(
            llama.windows
        )
        self.windows = llama.windows
        self._rope = llama.rope.build(weights.device)
        if streaming is not None:
            self._rope = replace(self._rope, reach=streaming.reach)
        stable = self._rope.stable_length
        self.kv_depends_on_prompt_length = stable is not None and self.max_positions > stable

        shape = (llama.vocab_size, llama.hidden_size)
        # As in transformers 5, a head that is stored is used even where the config says tied.
        embedding = "model.embed_tokens.weight"
        if llama.tied_embeddings and "lm_head.weight" not in weights:
            self._head = linears.table(embedding, *shape)
            self._embed = self._head.rows
        else:
            self._head = linears.table("lm_head.weight", *shape)
            self._embed = PlainLinear(weights.take(embedding, *shape)).rows
        sinks = streaming.sinks if streaming else 0
        layers = tuple(
            _read_layer(llama, weights, linears, index, window, sinks)
            for index, window in enumerate(llama.windows)
        )
        norm = _read_norm(llama, weights, "model.norm", llama.hidden_size)
        self._decoder = Decoder(layers, norm)
        self.weight_bytes = weights.bytes_taken + linears.nbytes

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerKV],
        kernels: Kernels,
    ) -> Tensor:
        """See ``Model.forward``."""
        rotation = self._rope.rotation(batch)
        x = self._embed(token_ids, self.dtype)
        return kernels.run(self._decoder, x, kv, kernels.plan(batch), rotation)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Model.logits``."""
        return self._head.floats(hidden)


def _read_norm(config: LlamaConfig, weights: Weights, name: str, width: int) -> Norm:
    return Norm(width, weights.take(f"{name}.weight", width), config.norm_eps)


def _refuse_to_stream(config: LlamaConfig, streaming: Streaming) -> None:
    if any(config.windows):
        raise ConfigError("window: this model has sliding windows of its own")
    if config.rope.build().stable_length is not None:
        raise ConfigError(
            f"window: the rotary frequencies of this model ({config.rope.kind}) change with the "
            "length of the sequence, so it cannot run for ever"
        )
    longest = max(config.rope.limit, config.rope.max_position_embeddings)
    if streaming.reach > longest:
        raise ConfigError(
            f"attention_sinks + window is {streaming.reach}; this model allows at most {longest}"
        )


def _read_layer(
    config: LlamaConfig,
    weights: Weights,
    linears: LinearReader,
    index: int,
    window: int | None,
    sinks: int,
) -> DecoderLayer:
    prefix = f"model.layers.{index}"
    hidden, head_dim = config.hidden_size, config.head_dim
    heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    def head_norm(name: str) -> Norm | None:
        if not config.qk_norm:
            return None
        return _read_norm(config, weights, f"{prefix}.self_attn.{name}", head_dim)

    return DecoderLayer(
        attention_norm=_read_norm(config, weights, f"{prefix}.input_layernorm", hidden),
        qkv=_read_qkv(config, linears, f"{prefix}.self_attn", [head_dim * n for n in heads]),
        num_heads=config.num_heads,
        spec=AttentionSpec(
            scale=head_dim**-0.5,
            window=window,
            sinks=sinks,
            query_norm=head_norm("q_norm"),
            key_norm=head_norm("k_norm"),
        ),
        output=linears.linear(
            [f"{prefix}.self_attn.o_proj"], head_dim * heads[0], [hidden], config.output_bias
        ),
        mlp_norm=_read_norm(config, weights, f"{prefix}.post_attention_layernorm", hidden),
        up=_read_up(config, linears, f"{prefix}.mlp"),
        down=linears.linear(
            [f"{prefix}.mlp.down_proj"], config.intermediate_size, [hidden], config.mlp_bias
        ),
        activation=config.activation,
        gated=True,
    )


def _read_qkv(config: LlamaConfig, linears: LinearReader, prefix: str, widths: list[int]) -> Linear:
    names = [f"{prefix}.{name}_proj" for name in "qkv"]
    if config.fused:
        names, widths = [f"{prefix}.qkv_proj"], [sum(widths)]
    return linears.linear(names, config.hidden_size, widths, config.qkv_bias)


def _read_up(config: LlamaConfig, linears: LinearReader, prefix: str) -> Linear:
    """The gate beside what it multiplies."""
    names, widths = [f"{prefix}.gate_proj", f"{prefix}.up_proj"], [config.intermediate_size] * 2
    if config.fused:
        names, widths = [f"{prefix}.gate_up_proj"], [sum(widths)]
    return linears.linear(names, config.hidden_size, widths, config.mlp_bias)
