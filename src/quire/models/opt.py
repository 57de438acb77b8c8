"""OPT (Zhang et al., 2022), the models of the PagedAttention paper.

Learned positions, LayerNorm, plain ReLU MLPs. The 350m variant normalises after each part instead
of before it, and its embeddings are narrower than its layers. Tensors are named as in
``transformers``.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ModelError
from quire.kernels.layer_memory import KVShape
from quire.kernels.mlps import ACTIVATIONS, Activation
from quire.kernels.ops import AttentionSpec, Norm, Norms
from quire.models.blueprint import Heads
from quire.models.config import ModelConfig
from quire.models.decoder import Decoder, LearnedPositions
from quire.models.dividing import rows_of_heads, rows_of_parts
from quire.models.family import Family
from quire.models.layers import MLP, Attention, Layer
from quire.models.linear import Linear, LinearReader
from quire.models.rope import RopeConfig
from quire.models.shape import Positions
from quire.models.shard import Divided
from quire.models.weights import Weights

# Position p is row p + 2: the first rows stood for padding when OPT was trained.
_POSITION_OFFSET = 2
_NORM_EPS = 1e-5


@dataclass(frozen=True)
class OPTConfig:
    """The fields of config.json, their defaults filled in."""

    vocab_size: int
    hidden_size: int
    embedding_size: int
    ffn_size: int
    windows: tuple[int | None, ...]  # none, in each layer
    heads: Heads
    positions: Positions
    activation: str
    norm_first: bool
    final_norm: bool
    affine_norms: bool
    bias: bool
    tied_embeddings: bool
    ropes: tuple[RopeConfig, ...] = ()  # positions are learned
    mixture: None = None

    @property
    def divided(self) -> Divided:
        """See ``FamilyConfig.divided``."""
        return Divided(
            self.heads.num, self.heads.num_kv, self.vocab_size, {"ffn_dim": self.ffn_size}
        )

    @classmethod
    def read(cls, config: ModelConfig) -> OPTConfig:
        """Read config.json.

        Raises:
            ModelError: a field is missing, of the wrong type, or contradicts another.
        """
        fields = config.fields
        hidden_size = fields.positive("hidden_size")
        num_heads = fields.positive("num_attention_heads")
        if hidden_size % num_heads:
            raise ModelError(
                f"{fields.source}: hidden_size ({hidden_size}) is not a multiple of "
                f"num_attention_heads ({num_heads})"
            )
        norm_first = fields.get("do_layer_norm_before", bool, True)
        longest = fields.positive("max_position_embeddings")
        return cls(
            vocab_size=fields.positive("vocab_size"),
            hidden_size=hidden_size,
            embedding_size=fields.positive("word_embed_proj_dim", hidden_size),
            ffn_size=fields.positive("ffn_dim"),
            windows=(None,) * fields.positive("num_hidden_layers"),
            heads=Heads(num_heads, num_heads, hidden_size // num_heads),
            positions=Positions(longest, longest),
            activation=fields.choice("activation_function", ACTIVATIONS, "relu"),
            norm_first=norm_first,
            final_norm=norm_first and not fields.get("_remove_final_layer_norm", bool, False),
            affine_norms=fields.get("layer_norm_elementwise_affine", bool, True),
            bias=fields.get("enable_bias", bool, True),
            tied_embeddings=fields.get("tie_word_embeddings", bool, True),
        )


def _build(config: OPTConfig, weights: Weights, linears: LinearReader) -> Decoder:
    # Some published checkpoints leave out the outer name.
    plain = any(name.startswith("decoder.layers.") for name in weights)
    prefix = "decoder" if plain else "model.decoder"
    narrow, wide = config.embedding_size, config.hidden_size
    embed, head = linears.embedding_and_head(
        f"{prefix}.embed_tokens.weight",
        "lm_head.weight",
        (config.vocab_size, narrow),
        config.tied_embeddings,
    )
    rows = config.positions.default + _POSITION_OFFSET
    positions = weights.take(f"{prefix}.embed_positions.weight", rows, wide)
    project_in = project_out = None
    if narrow != wide:
        project_in = linears.linear(f"{prefix}.project_in", narrow, wide, False)
        project_out = linears.linear(f"{prefix}.project_out", wide, narrow, False)
    norm = f"{prefix}.final_layer_norm"
    return Decoder(
        vocab_size=config.vocab_size,
        dtype=weights.dtype,
        embed=embed,
        layers=tuple(
            _read_layer(config, weights, linears, f"{prefix}.layers.{index}")
            for index in range(len(config.windows))
        ),
        final_norm=_read_norm(config, weights, norm) if config.final_norm else None,
        head=head,
        positions=LearnedPositions(positions, _POSITION_OFFSET),
        project_in=project_in,
        project_out=project_out,
    )


def _read_layer(config: OPTConfig, weights: Weights, linears: LinearReader, prefix: str) -> Layer:
    hidden, ffn = config.hidden_size, config.ffn_size
    shard, heads = linears.shard, config.heads
    inner = {"up": ffn}

    def linear(name: str, inputs: int, columns: slice) -> Linear:
        return linears.linear(f"{prefix}.{name}", inputs, hidden, config.bias, columns)

    def norms(name: str) -> Norms:
        norm = _read_norm(config, weights, f"{prefix}.{name}")
        return Norms(before=norm) if config.norm_first else Norms(after=norm)

    names = [f"{prefix}.self_attn.{name}_proj" for name in "qkv"]
    return Layer(
        mixer=Attention(
            qkv=linears.joined(
                names,
                hidden,
                dict.fromkeys("qkv", hidden),
                config.bias,
                rows_of_heads(shard, heads),
            ),
            output=linear("self_attn.out_proj", hidden, shard.columns(heads.num, heads.dim)),
            kv=KVShape(len(shard.kv_heads(heads.num)), heads.dim, heads.dim),
            spec=AttentionSpec(scale=heads.dim**-0.5),
        ),
        mixer_norms=norms("self_attn_layer_norm"),
        mlp=MLP(
            up=linears.joined(
                [f"{prefix}.fc1"], hidden, inner, config.bias, rows_of_parts(shard, inner)
            ),
            down=linear("fc2", ffn, shard.columns(ffn)),
            activation=Activation(config.activation),
        ),
        mlp_norms=norms("final_layer_norm"),
    )


def _read_norm(config: OPTConfig, weights: Weights, name: str) -> Norm:
    width, weight, bias = config.hidden_size, None, None
    if config.affine_norms:
        weight = weights.take(f"{name}.weight", width)
        bias = weights.take(f"{name}.bias", width)
    return Norm(width, weight, _NORM_EPS, bias, centred=True)


FAMILY = Family(("OPTForCausalLM",), OPTConfig.read, _build)
