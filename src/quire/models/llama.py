"""The Llama family: decoders with rotary embeddings, and norms, projections and MLPs as Llama's.

What tells its members apart is in their configs, or in ``TRAITS`` where ``transformers`` has it
in code. Tensors are named as in ``transformers``.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import ModelError
from quire.kernels.mlps import ACTIVATIONS
from quire.models.blueprint import Biases, Blueprint, Family, Heads
from quire.models.config import ConfigFields, ModelConfig
from quire.models.rope import RopeConfig
from quire.models.shape import (
    filled_in,
    find_family,
    latent_of,
    positions_of,
    widest,
    windows_of,
)
from quire.models.traits import TRAITS, Traits

_INNERS = ("intermediate_size", "moe_intermediate_size")
_ROTATED = "rotary_dim"
_GUESSING = ("num_nextn_predict_layers", "num_mtp_layers")


def read(config: ModelConfig) -> Blueprint:
    traits, shape = TRAITS[config.architecture], find_family(config.architecture, "")
    assert shape is not None, "every architecture here has a shape"
    fields = filled_in(config.fields, shape)
    hidden_size = fields.positive("hidden_size")
    num_heads = fields.positive("num_attention_heads")
    latent = latent_of(fields) if shape.latent else None
    if latent is None:
        head_dim = fields.positive("head_dim", shape.head_size or hidden_size // num_heads)
    else:
        head_dim = latent.rope
    num_kv_heads = fields.positive("num_key_value_heads", num_heads)
    rope = _read_rope(fields, traits, head_dim, config.architecture)
    windows = windows_of(fields, shape)
    parallel = _says(fields, traits.parallel)
    names = traits.names.beside_images() if config.with_images else traits.names
    if parallel:
        names = replace(names, mlp_before=None)
    plan = Blueprint(
        names=names,
        vocab_size=fields.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=widest(fields, shape).positive(
            next((one for one in _INNERS if one in fields), _INNERS[0])
        ),
        heads=Heads.read(fields, num_heads, num_kv_heads, head_dim),
        windows=windows,
        positions=positions_of(fields, shape),
        ropes=(rope,),
        rope_of=(0,) * len(windows),
        norm=replace(traits.norm, eps=_eps(fields, traits)),
        biases=Biases(
            qkv=_says(fields, traits.qkv_bias, traits.biases),
            output=_says(fields, traits.output_bias, traits.biases),
            mlp=_says(fields, traits.mlp_bias, traits.biases),
        ),
        activation=fields.choice(
            traits.activation_field, {*ACTIVATIONS, traits.activation}, traits.activation
        ),
        gated=shape.gated_mlp,
        tied_embeddings=fields.get("tie_word_embeddings", bool, shape.tied),
        attention_scale=head_dim**-0.5,
        head_norms=traits.head_norms,
        row_order=traits.row_order,
        parallel=parallel,
        guessing_layers=max(fields.get(name, int, 0) for name in _GUESSING),
    )
    return traits.varied(fields, plan)


def _read_rope(
    fields: ConfigFields, traits: Traits, head_dim: int, architecture: str
) -> RopeConfig:
    share = traits.rotary_share
    usual = 1.0 if share is None else share
    if _ROTATED in fields:  # as MiniMax has it, in place of a share
        usual = fields.positive(_ROTATED) / head_dim
    rope = RopeConfig.read(fields, head_dim, traits.theta, usual)
    if rope.rotated != head_dim and share is None:
        raise ModelError(
            f"{fields.source}: {architecture} has no partial_rotary_factor other than 1"
        )
    return rope


def _says(fields: ConfigFields, truth: bool | str, default: bool = False) -> bool:
    return truth if isinstance(truth, bool) else fields.get(truth, bool, default)


def _eps(fields: ConfigFields, traits: Traits) -> float:
    return traits.eps if isinstance(traits.eps, float) else fields.epsilon(traits.eps)


FAMILY = Family(tuple(TRAITS), read, {name: traits.foreign for name, traits in TRAITS.items()})
