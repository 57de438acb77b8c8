"""OPT (Zhang et al., 2022), the models of the PagedAttention paper.

Learned positions, LayerNorm, plain ReLU MLPs. The 350m variant normalises after each part instead
of before it, and its embeddings are narrower than its layers. Tensors are named as in
``transformers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import ModelError
from quire.kernels.decoder import attention
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
from quire.model.base import checked_max_positions
from quire.model.config import ModelConfig
from quire.model.linear import Linear, LinearReader, PlainLinear
from quire.model.weights import Weights

ARCHITECTURES = ("OPTForCausalLM",)

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
    num_layers: int
    num_heads: int
    max_position_embeddings: int
    activation: str
    norm_first: bool
    final_norm: bool
    affine_norms: bool
    bias: bool
    tied_embeddings: bool

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
        return cls(
            vocab_size=fields.positive("vocab_size"),
            hidden_size=hidden_size,
            embedding_size=fields.positive("word_embed_proj_dim", hidden_size),
            ffn_size=fields.positive("ffn_dim"),
            num_layers=fields.positive("num_hidden_layers"),
            num_heads=num_heads,
            max_position_embeddings=fields.positive("max_position_embeddings"),
            activation=fields.choice("activation_function", ACTIVATIONS, "relu"),
            norm_first=norm_first,
            final_norm=norm_first and not fields.get("_remove_final_layer_norm", bool, False),
            affine_norms=fields.get("layer_norm_elementwise_affine", bool, True),
            bias=fields.get("enable_bias", bool, True),
            tied_embeddings=fields.get("tie_word_embeddings", bool, True),
        )


class OPTModel:
    """A ``Model`` of the OPT family."""

    kv_depends_on_prompt_length = False
    replayable = True

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        linears: LinearReader,
        max_model_len: int | None,
    ) -> None:
        """Take the family's tensors from ``weights``.

        Raises:
            ModelError: see ``OPTConfig.read``, ``Weights.take`` and ``checked_max_positions``.
        """
        opt = OPTConfig.read(config)
        self.vocab_size = opt.vocab_size
        self.eos_token_ids = config.eos_token_ids
        self.dtype = weights.dtype
        positions = opt.max_position_embeddings
        self.max_positions = checked_max_positions(max_model_len, positions, positions)
        head_dim = opt.hidden_size // opt.num_heads
        self.kv_shapes = (KVShape(opt.num_heads, head_dim, head_dim),) * opt.num_layers
        self.windows: tuple[int | None, ...] = (None,) * opt.num_layers

        # Some published checkpoints leave out the outer name.
        plain = "decoder.embed_tokens.weight" in weights
        prefix = "decoder" if plain else "model.decoder"
        shape = (opt.vocab_size, opt.embedding_size)
        # As in transformers 5, a head that is stored is used even where the config says tied.
        embedding = f"{prefix}.embed_tokens.weight"
        if opt.tied_embeddings and "lm_head.weight" not in weights:
            self._head = linears.table(embedding, *shape)
            self._embed = self._head.rows
        else:
            self._head = linears.table("lm_head.weight", *shape)
            self._embed = PlainLinear(weights.take(embedding, *shape)).rows
        self._positions = weights.take(
            f"{prefix}.embed_positions.weight", positions + _POSITION_OFFSET, opt.hidden_size
        )
        self._project_in = self._project_out = None
        if opt.embedding_size != opt.hidden_size:
            narrow, wide = opt.embedding_size, opt.hidden_size
            self._project_in = linears.linear([f"{prefix}.project_in"], narrow, [wide], False)
            self._project_out = linears.linear([f"{prefix}.project_out"], wide, [narrow], False)
        layers = tuple(
            _read_layer(opt, weights, linears, f"{prefix}.layers.{index}")
            for index in range(opt.num_layers)
        )
        norm = _read_norm(opt, weights, f"{prefix}.final_layer_norm") if opt.final_norm else None
        self._decoder, self._norm_first = Decoder(layers, norm), opt.norm_first
        self.weight_bytes = weights.bytes_taken + linears.nbytes

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerKV],
        kernels: Kernels,
    ) -> Tensor:
        """See ``Model.forward``."""
        plan = kernels.plan(batch)
        x = self._embed(token_ids, self.dtype)
        if self._project_in is not None:
            x = self._project_in(x)
        x = x + torch.embedding(self._positions, batch.positions + _POSITION_OFFSET)
        if self._norm_first:
            x = kernels.run(self._decoder, x, kv, plan)
        else:
            x = self._norm_last(x, kv, kernels, plan)
        return x if self._project_out is None else self._project_out(x)

    def _norm_last(
        self, x: Tensor, kv: Sequence[LayerKV], kernels: Kernels, plan: object
    ) -> Tensor:
        """x [T, hidden] -> [T, hidden], by layers that normalise what they add up."""
        for layer, layer_kv in zip(self._decoder.layers, kv, strict=True):
            x = kernels.add_norm(
                x, attention(kernels, layer, x, layer_kv, plan), layer.attention_norm
            )
            activated = kernels.activate(layer.up(x), layer.activation, layer.gated)
            x = kernels.add_norm(x, layer.down(activated), layer.mlp_norm)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Model.logits``."""
        return self._head.floats(hidden)


def _read_layer(
    config: OPTConfig, weights: Weights, linears: LinearReader, prefix: str
) -> DecoderLayer:
    hidden, ffn = config.hidden_size, config.ffn_size

    def linear(names: list[str], inputs: int, outputs: int) -> Linear:
        paths = [f"{prefix}.{name}" for name in names]
        return linears.linear(paths, inputs, [outputs] * len(names), config.bias)

    return DecoderLayer(
        attention_norm=_read_norm(config, weights, f"{prefix}.self_attn_layer_norm"),
        qkv=linear([f"self_attn.{name}_proj" for name in "qkv"], hidden, hidden),
        output=linear(["self_attn.out_proj"], hidden, hidden),
        mlp_norm=_read_norm(config, weights, f"{prefix}.final_layer_norm"),
        up=linear(["fc1"], hidden, ffn),
        down=linear(["fc2"], ffn, hidden),
        activation=config.activation,
        gated=False,
        num_heads=config.num_heads,
        spec=AttentionSpec(scale=(hidden // config.num_heads) ** -0.5),
    )


def _read_norm(config: OPTConfig, weights: Weights, name: str) -> Norm:
    width, weight, bias = config.hidden_size, None, None
    if config.affine_norms:
        weight = weights.take(f"{name}.weight", width)
        bias = weights.take(f"{name}.bias", width)
    return Norm(width, weight, _NORM_EPS, bias, centred=True)
