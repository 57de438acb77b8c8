"""Models that GGUF files hold, one record for each, and how their tensors differ there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXPERTS = "expert_count"

_RMS = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
_LAYER_NORM = ("attention.layer_norm_epsilon", "layer_norm_eps")


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
    eps: tuple[str, str] = _RMS  # in metadata and in config.json
    # Of config.json, by names in metadata: what its files have beside what all have.
    fields: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what its files do not say
    # Queries are scaled by the width of a head, but in the model of so many layers by that of the
    # decoder's share for one.
    scaled_by_share: int | None = None
    local_theta: float | None = None  # layers with a window have a rotation of their own
    alike_theta: bool = False  # as above, of the same base, and never stretched
    whole_yarn: bool = True  # dimensions between which YaRN blends are whole

    @property
    def has_experts(self) -> bool:
        """Whether its MLPs are mixtures."""
        return self.told_by == EXPERTS


_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_QWEN_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_MIXTRAL = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_LOGITS = {"logit_scale": "logit_scale"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}

ARCHITECTURES = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True),
    Architecture(
        "llama", "mixtral", "MixtralForCausalLM", EXPERTS, interleaved=True, names=_MIXTRAL
    ),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS, fields=_QWEN_EXPERTS),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM"),
    Architecture(
        "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS, fields=_QWEN_EXPERTS,
        fixed={"norm_topk_prob": True},
    ),
    Architecture(
        "phi3", "phi3", "Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, fields=_WINDOW,
    ),
    Architecture("gemma", "gemma", "GemmaForCausalLM", norms_with_one=True),
    Architecture(
        "gemma2", "gemma2", "Gemma2ForCausalLM", norms_with_one=True, names=_AROUND,
        fields={**_CAPS, **_WINDOW},
        fixed={"sliding_window": 4096}, scaled_by_share=46,
    ),
    Architecture(
        "gemma3", "gemma3_text", "Gemma3ForCausalLM", norms_with_one=True, names=_AROUND,
        fields={"final_logit_softcapping": "final_logit_softcapping", **_WINDOW},
        scaled_by_share=62, local_theta=10_000.0,
    ),
    Architecture("olmo2", "olmo2", "Olmo2ForCausalLM", names=_AROUND),
    Architecture(
        "olmo2", "olmo3", "Olmo3ForCausalLM", "attention.sliding_window", names=_AROUND,
        fields=_WINDOW, alike_theta=True,
    ),
    Architecture("olmoe", "olmoe", "OlmoeForCausalLM", EXPERTS),
    Architecture(
        "gpt-oss", "gpt_oss", "GptOssForCausalLM", EXPERTS, names=_GPT_OSS, fields=_WINDOW,
        whole_yarn=False,
    ),
    Architecture("granite", "granite", "GraniteForCausalLM", interleaved=True, fields=_GRANITE),
    Architecture(
        "granitemoe", "granitemoe", "GraniteMoeForCausalLM", EXPERTS, interleaved=True,
        names={"ffn_gate_inp": "block_sparse_moe.router.layer"}, fields=_GRANITE,
    ),
    Architecture("smollm3", "smollm3", "SmolLM3ForCausalLM", interleaved=True),
    Architecture(
        "starcoder2", "starcoder2", "Starcoder2ForCausalLM", eps=(_LAYER_NORM[0], "norm_epsilon"),
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    Architecture(
        "stablelm", "stablelm", "StableLmForCausalLM", eps=_LAYER_NORM,
        fields={"use_parallel_residual": "use_parallel_residual"},
    ),
    Architecture("command-r", "cohere", "CohereForCausalLM", eps=_LAYER_NORM, fields=_LOGITS),
    Architecture(
        "cohere2", "cohere2", "Cohere2ForCausalLM", eps=_LAYER_NORM, fields={**_LOGITS, **_WINDOW},
    ),
)  # fmt: skip
