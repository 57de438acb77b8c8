"""Descendants of GPT-2: OPT, and with rotary embeddings GPT-J, GPT-NeoX, Falcon and Phi.

LayerNorm, and MLPs without gates; but for OPT, attention beside the MLP rather than before it. OPT
(Zhang et al., 2022), the models of the PagedAttention paper, has learned positions; its 350m
variant normalises after each part instead of before it, and its embeddings are narrower than its
layers. Tensors are named as in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quire.core.errors import ModelError
from quire.kernels.mlps import ACTIVATIONS
from quire.models.blueprint import (
    Biases,
    Blueprint,
    Family,
    Heads,
    LearnedPlan,
    NormKind,
    TensorNames,
)
from quire.models.config import ConfigFields, ModelConfig
from quire.models.rope import RopeConfig
from quire.models.shape import find_family, positions_of

_NEOX = TensorNames(
    roots=("gpt_neox", ""),
    embedding="embed_in",
    final_norm="final_layer_norm",
    heads=("lm_head", "embed_out"),
    qkv=("attention.query_key_value",),
    output="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_GPTJ = TensorNames(
    roots=("transformer", ""),
    embedding="wte",
    layers="h",
    final_norm="ln_f",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    output="attn.out_proj",
    up=("mlp.fc_in",),
    down="mlp.fc_out",
    attention_before="ln_1",
    mlp_before=None,
)
_FALCON = TensorNames(
    roots=("transformer", ""),
    embedding="word_embeddings",
    layers="h",
    final_norm="ln_f",
    qkv=("self_attention.query_key_value",),
    output="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_PHI = TensorNames(
    final_norm="final_layernorm",
    output="self_attn.dense",
    up=("mlp.fc1",),
    down="mlp.fc2",
    mlp_before=None,
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
)
_OPT = TensorNames(
    roots=("model.decoder", "decoder"),  # some published checkpoints leave out the outer name
    final_norm="final_layer_norm",
    output="self_attn.out_proj",
    up=("fc1",),
    down="fc2",
    attention_before="self_attn_layer_norm",
    mlp_before="final_layer_norm",
)
_OPT_OFFSET = 2  # the first rows stood for padding when OPT was trained


def _neox(fields: ConfigFields) -> Blueprint:
    heads = _heads(fields, "num_attention_heads")
    theta = fields.get("rotary_emb_base", float, 10_000.0)
    share = fields.get("rotary_pct", float, 0.25)
    bias = fields.get("attention_bias", bool, True)
    return replace(
        _plan(fields, _NEOX, heads, RopeConfig.read(fields, heads.dim, theta, share)),
        biases=Biases(qkv=bias, output=bias, mlp=True),
        row_order="groups",
        parallel=fields.get("use_parallel_residual", bool, True),
    )


def _gptj(fields: ConfigFields) -> Blueprint:
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    values = {**fields.values, **{new: fields.values.get(old) for new, old in names.items()}}
    fields = ConfigFields(values, fields.source)
    heads = _heads(fields, "num_attention_heads")
    rotated = fields.positive("rotary_dim", 64)
    if rotated > heads.dim:
        raise fields.wrong("rotary_dim", f"at most {heads.dim}, the size of a head")
    return replace(
        _plan(
            fields,
            _GPTJ,
            heads,
            replace(RopeConfig.read(fields, heads.dim), rotated=rotated),
            inner=4 * fields.positive("hidden_size"),
            activation="gelu_new",
        ),
        biases=Biases(mlp=True, head=True),
        row_order="pairs",
    )


def _falcon(fields: ConfigFields) -> Blueprint:
    """The first ones had one key for all queries or one for each; the later share in groups."""
    grouped = fields.get("new_decoder_architecture", bool, False)
    single = not grouped and fields.get("multi_query", bool, True)
    heads = _heads(fields, "num_attention_heads", None if single else "num_kv_heads")
    if single:
        heads = replace(heads, num_kv=1)
    parallel = grouped or fields.get("parallel_attn", bool, True)
    names = _FALCON
    in_order = fields.get("heads_in_order", bool, False)  # as GGUF files have them
    if grouped and fields.get("num_ln_in_parallel_attn", int, 2) == 2:
        of_mlp = "input_layernorm" if in_order else "ln_mlp"
        names = replace(names, attention_before="ln_attn", mlp_before=of_mlp)
    elif parallel:
        names = replace(names, mlp_before=None)
    bias = fields.get("bias", bool, False)
    values = {
        **fields.values,
        "hidden_act": fields.values.get("activation"),
        "intermediate_size": fields.values.get("ffn_hidden_size"),
        "layer_norm_eps": fields.values.get("layer_norm_epsilon"),
        "max_position_embeddings": fields.positive("max_position_embeddings", 2048),
    }
    fields = ConfigFields(values, fields.source)
    inner = 4 * fields.positive("hidden_size")
    rope = RopeConfig.read(fields, heads.dim)
    return replace(
        _plan(fields, names, heads, rope, inner=inner),
        biases=Biases(qkv=bias, output=bias, mlp=bias),
        row_order="heads" if in_order else "groups",
        parallel=parallel,
    )


def _phi(fields: ConfigFields) -> Blueprint:
    heads = _heads(fields, "num_attention_heads", "num_key_value_heads")
    return replace(
        _plan(fields, _PHI, heads, RopeConfig.read(fields, heads.dim, share=0.5)),
        biases=Biases(qkv=True, output=True, mlp=True, head=True),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu_new"),
        head_norms="each" if fields.get("qk_layernorm", bool, False) else None,
    )


def _opt(fields: ConfigFields) -> Blueprint:
    hidden = fields.positive("hidden_size")
    first = fields.get("do_layer_norm_before", bool, True)
    if not first or fields.get("_remove_final_layer_norm", bool, False):
        names = replace(_OPT, final_norm=None)
    else:
        names = _OPT
    bias = fields.get("enable_bias", bool, True)
    affine = fields.get("layer_norm_elementwise_affine", bool, True)
    plan = _plan(
        fields,
        names,
        _heads(fields, "num_attention_heads"),
        None,
        inner=fields.positive("ffn_dim"),
        activation=fields.choice("activation_function", ACTIVATIONS, "relu"),
    )
    return replace(
        plan,
        norm=NormKind(1e-5, centred=True, weight=affine, bias=affine),
        biases=Biases(qkv=bias, output=bias, mlp=bias),
        learned=LearnedPlan(_OPT_OFFSET, fields.positive("word_embed_proj_dim", hidden)),
        norms_after=not first,
        parallel=False,
    )


def _heads(fields: ConfigFields, queries: str, keys: str | None = None) -> Heads:
    num, hidden = fields.positive(queries), fields.positive("hidden_size")
    if hidden % num:
        raise ModelError(
            f"{fields.source}: hidden_size ({hidden}) is not a multiple of {queries} ({num})"
        )
    num_kv = num if keys is None else fields.positive(keys, num)
    return Heads.read(fields, num, num_kv, hidden // num)


def _plan(
    fields: ConfigFields,
    names: TensorNames,
    heads: Heads,
    rope: RopeConfig | None,
    inner: int | None = None,
    activation: str = "gelu",
) -> Blueprint:
    """The plan that all have in common. inner, activation: if the config does not say."""
    layers = fields.positive("num_hidden_layers")
    shape = find_family(None, fields.get("model_type", str, ""))
    assert shape is not None
    return Blueprint(
        names=names,
        vocab_size=fields.positive("vocab_size"),
        hidden_size=fields.positive("hidden_size"),
        intermediate_size=fields.positive("intermediate_size", inner),
        heads=heads,
        windows=(None,) * layers,
        positions=positions_of(fields, shape),
        ropes=() if rope is None else (rope,),
        rope_of=(None if rope is None else 0,) * layers,
        norm=NormKind(fields.epsilon("layer_norm_eps", 1e-5), centred=True, bias=True),
        biases=Biases(),
        activation=fields.choice("hidden_act", ACTIVATIONS, activation),
        gated=False,
        tied_embeddings=fields.get("tie_word_embeddings", bool, shape.tied),
        attention_scale=heads.dim**-0.5,
        parallel=True,
    )


_READERS: Mapping[str, Callable[[ConfigFields], Blueprint]] = {
    "GPTNeoXForCausalLM": _neox,
    "GPTJForCausalLM": _gptj,
    "FalconForCausalLM": _falcon,
    "PhiForCausalLM": _phi,
    "OPTForCausalLM": _opt,
}


def read(config: ModelConfig) -> Blueprint:
    plan = _READERS[config.architecture](config.fields)
    if config.has_head:
        return plan
    return replace(plan, biases=replace(plan.biases, head=False))


FAMILY = Family(tuple(_READERS), read, {"FalconForCausalLM": ("alibi",)})
