"""What there is to say of the models that one kind of GGUF file holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EXPERTS = "expert_count"

RMS = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
LAYER_NORM = ("attention.layer_norm_epsilon", "layer_norm_eps")


@dataclass(frozen=True)
class Architecture:
    """``general.architecture``, and what transformers calls it.

    Names of metadata are those after the architecture's.
    """

    name: str
    model_type: str
    class_name: str
    # The field that is above zero in its files, where others have the same name without it.
    told_by: str | None = None
    # Rows of queries and keys are in the order in which neighbours are rotated with each other.
    interleaved: bool = False
    norms_with_one: bool = False  # norms are stored with the 1 that the family adds to them
    # Tensors of a layer that its family calls otherwise than Llama's; {} is an expert's number.
    names: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers"  # what its family's are below
    eps: tuple[str, str] = RMS  # in metadata and in config.json
    # Of config.json, by names in metadata: what its files have beside what all have.
    fields: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what its files do not say
    # Queries are scaled by the width of a head, but in the model with this many layers by that of
    # the decoder's share for one.
    scaled_by_share: int | None = None
    local_theta: float | None = None  # layers with a window have a rotation of their own
    alike_theta: bool = False  # as above, of the same base, and never stretched
    states: str | None = None  # what layers that keep a state are called; None: none does
    alone: bool = False  # a layer is one part: an MLP is a layer of its own
    latent: bool = False  # keys and values are made of one vector
    sigmoid: bool = False  # that is what scores of experts are, and not a softmax
    whole_yarn: bool = True  # dimensions between which YaRN blends are whole
    # The weight of YaRN's logarithm, ``mscale_all_dim``, for 1 in its files.
    yarn_weight: float | None = None
    growth: float | None = None  # of queries, with their positions, where its files do not say
    # What positions past the original ones are multiplied by, whatever its files say.
    longrope_factor: float | None = None
    # A count in metadata that tells what its files do not say, at which value, and what.
    told_by_count: tuple[str, int, Mapping[str, Any]] | None = None
    # Truths of config.json that tensors of layers tell, beside those of all families.
    told_by_tensors: Mapping[str, str] = field(default_factory=dict)
    # Lists of metadata, by their whole names: a number of each layer, which is a tensor elsewhere.
    numbers: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()  # what its files say to nobody
    parted: bool = False  # its family has three tensors where files may have ``attn_qkv``
    by_layer: bool = False  # sizes differ from layer to layer
    other_heads: bool = False  # values are narrower than keys; more heads of both in windows
    streams: bool = False  # so may those of MLPs, and layers see one of several streams

    @property
    def has_experts(self) -> bool:
        """Whether its MLPs are mixtures."""
        return self.told_by is not None and self.told_by.startswith("expert_")


_PROJECTIONS, W_PARTS = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


def mlp(root: str, kind: str = "", parts: Sequence[str] = _PROJECTIONS) -> dict[str, str]:
    """Names of gate, up and down below ``root``. kind: what their names in GGUF files end with."""
    each = zip(("gate", "up", "down"), parts, strict=True)
    return {f"ffn_{name}{kind}": f"{root}.{part}" for name, part in each}


GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
QWEN_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
MIXTRAL = mlp("block_sparse_moe.experts.{}", "_exps", W_PARTS)
SHARED = mlp("mlp.shared_experts", "_shexp")
SHARED_ONE = {"expert_shared_feed_forward_length": "shared_intermediate_size"}
DEEPSEEK_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj.keys.{}",
    "attn_v_b": "self_attn.kv_b_proj.values.{}",
}
LATENT_FIELDS = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
