"""What models of a family do that their configs do not say, one record for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

WindowRule = Literal[
    "never", "always", "all_if_used", "if_used", "listed", "named", "alternating", "chunked"
]
"""Which layers a ``sliding_window`` counts in: none; all; all, with ``use_sliding_window``; those
that ``layer_types`` names, or the ones from ``max_window_layers`` on, with ``use_sliding_window``;
with that, those that ``layer_types`` names; these without that; those that it names or, without it,
all but each ``full_every``-th; these, with chunks of ``attention_chunk_size`` for windows."""

RecurrenceKind = Literal["delta rule", "channel delta rule", "state space", "convolution"]
"""What layers keep a state for: Gated DeltaNet; Kimi Delta Attention, which decays each channel of
keys by itself; Mamba-2; a short convolution and nothing else."""

_HEAD = re.compile(r"(For[A-Z][a-z]+(LM|Classification|Generation|Answering)|(LMHead)?Model)$")


@dataclass(frozen=True)
class FamilyFacts:
    """A family by its names: the ``model_type`` of its configs, and its class in transformers."""

    model_type: str
    architecture: str
    also: tuple[str, ...] = ()  # other types of configs for the same layers
    computed_by: str = ""  # the class that computes it in transformers, and is named where it saves
    gated_mlp: bool = True
    tied: bool = False  # where ``tie_word_embeddings`` is absent
    learned_positions: bool = False
    biases: bool = False
    head_size: int | None = None  # where ``head_dim`` is absent; None: hidden_size / heads
    window: WindowRule = "never"
    full_every: int = 0  # under "alternating"; 0: never
    own_fields: tuple[str, ...] = ()  # of sizes, that other families' configs do not have
    words: tuple[tuple[str, str], ...] = ()  # its own for fields of others
    experts: bool = False  # MLPs are mixtures
    shared_experts: int = 0  # for all rows, where no field tells
    recurrence: RecurrenceKind | None = None  # of layers that keep a state; None: there are none
    beside_attention: bool = False  # all layers have both
    alone: bool = False  # each layer is one part: an MLP is a layer of its own
    gated_attention: bool = False  # what attention gives is gated, by as many numbers
    latent: bool = False  # keys and values are made of one vector
    index: bool = False  # beside which a key is kept by which tokens are chosen
    by_layer: bool = False  # sizes differ from layer to layer, and layers share (``LayerSizes``)
    streams: bool = False  # so they do, and layers see one of several streams
    other_heads: bool = False  # values are narrower than keys; more heads of both in windows
    planned_only: bool = False  # Quire has no code of its own for it
    defaults: tuple[tuple[str, float], ...] = ()  # of fields that configs leave out
    inside: tuple[tuple[str, float], ...] = ()  # and of those that they do in models that see
    fixed_ntk: bool = False  # "dynamic" rotations with an ``alpha`` are the same for all texts
    stretches: bool = False  # rotary scalings lengthen its texts, and may change longer ones

    def is_called(self, architecture: str) -> bool:
        """Whether that is its class, or has the same layers with another head, or with none."""
        layers = _HEAD.sub("", architecture)
        return layers.casefold() == _HEAD.sub("", self.architecture).casefold()


def _plain(
    model_type: str,
    architecture: str,
    tied: bool = False,
    learned: bool = False,
    stretches: bool = False,
) -> FamilyFacts:
    """A family without gates and with biases, like GPT-2."""
    return FamilyFacts(
        model_type,
        architecture,
        gated_mlp=False,
        tied=tied,
        learned_positions=learned,
        biases=True,
        stretches=stretches,
    )


_DELTA: Mapping[str, Any] = {
    "recurrence": "delta rule", "gated_attention": True, "head_size": 256, "stretches": True,
}  # fmt: skip

_HUNYUAN = (
    "moe_topk", "num_shared_expert", "use_mixed_mlp_moe", "use_cla", "cla_share_factor",
    "attention_head_dim", "eod_token_id", "im_start_id", "im_end_id", "pad_id", "text_start_id",
    "text_end_id", "image_token_id", "org_vocab_size", "dense_list", "moe_drop_tokens",
    "moe_random_routing_dropped_token", "moe_layer_num_skipped", "pool_type", "skip_cls_token",
    "capacity_factor", "group_limited_greedy",
)  # fmt: skip

_GEMMA_4 = FamilyFacts(
    "gemma4_text", "Gemma4ForCausalLM", tied=True, head_size=256, window="alternating",
    full_every=6, experts=True, by_layer=True,
    own_fields=(
        "global_head_dim", "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v",
        "num_kv_shared_layers", "use_double_wide_mlp", "hidden_size_per_layer_input",
        "vocab_size_per_layer_input", "enable_moe_block", "top_k_experts",
        "use_bidirectional_attention",
    ),
)  # fmt: skip

_COHERE_MOE = (
    "prefix_dense_sliding_window_pattern", "prefix_dense_intermediate_size", "expert_selection_fn",
    "shared_expert_combination_strategy",
)  # fmt: skip

_LATENT: Mapping[str, Any] = {"experts": True, "latent": True, "stretches": True}

_MINICPM = ("scale_emb", "scale_depth", "dim_model_base")

_BAILING = (
    "moe_router_enable_expert_bias", "score_function", "router_dtype", "router_type", "norm_head",
    "norm_softmax", "use_rmsnorm", "use_qk_norm", "output_dropout", "mtp_loss_scaling_factor",
    "num_mtp_layers", "default_theta", "moe_shared_expert_intermediate_size",
)  # fmt: skip

FAMILIES = (
    FamilyFacts(
        "llama", "LlamaForCausalLM", stretches=True,
        inside=(
            ("vocab_size", 32_000), ("hidden_size", 4096), ("intermediate_size", 11_008),
            ("num_hidden_layers", 32), ("num_attention_heads", 32),
            ("max_position_embeddings", 2048), ("rms_norm_eps", 1e-6),
        ),
    ),
    FamilyFacts(
        "ministral3", "Ministral3ForCausalLM", window="always", stretches=True, head_size=128
    ),
    FamilyFacts(
        "mistral", "MistralForCausalLM", window="always", stretches=True,
        inside=(
            ("vocab_size", 32_000), ("hidden_size", 4096), ("intermediate_size", 14_336),
            ("num_hidden_layers", 32), ("num_attention_heads", 32), ("num_key_value_heads", 8),
            ("max_position_embeddings", 131_072), ("rms_norm_eps", 1e-6),
        ),
    ),
    FamilyFacts("phi3", "Phi3ForCausalLM", window="always", stretches=True),
    FamilyFacts(
        "qwen2", "Qwen2ForCausalLM", window="if_used", stretches=True,
        also=("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    ),
    FamilyFacts(
        "qwen3", "Qwen3ForCausalLM", also=("qwen3_vl_text",), window="if_used", stretches=True,
        head_size=128,
    ),
    FamilyFacts("mixtral", "MixtralForCausalLM", window="always", experts=True, stretches=True),
    FamilyFacts("qwen2_moe", "Qwen2MoeForCausalLM", window="listed", experts=True, stretches=True),
    FamilyFacts(
        "qwen3_moe", "Qwen3MoeForCausalLM", also=("qwen3_vl_moe_text",), window="all_if_used",
        experts=True, stretches=True,
    ),
    FamilyFacts("qwen3_next", "Qwen3NextForCausalLM", experts=True, **_DELTA),
    FamilyFacts("qwen3_5_text", "Qwen3_5ForCausalLM", **_DELTA),
    FamilyFacts("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", experts=True, **_DELTA),
    FamilyFacts("lfm2", "Lfm2ForCausalLM", tied=True, recurrence="convolution", stretches=True),
    FamilyFacts(
        "lfm2_moe", "Lfm2MoeForCausalLM", tied=True, experts=True, recurrence="convolution",
        stretches=True,
    ),
    FamilyFacts(
        "lfm3", "Lfm3ForCausalLM", tied=True, head_size=128, window="named",
        recurrence="convolution", own_fields=("use_sandwich_norm", "use_attention_gate"),
    ),
    FamilyFacts(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", experts=True, recurrence="state space",
        stretches=True,
    ),
    FamilyFacts("bamba", "BambaForCausalLM", recurrence="state space", stretches=True),
    FamilyFacts(
        "falcon_h1", "FalconH1ForCausalLM", recurrence="state space", beside_attention=True,
        stretches=True,
    ),
    FamilyFacts(
        "nemotron_h", "NemotronHForCausalLM", gated_mlp=False, experts=True,
        recurrence="state space", alone=True,
    ),
    FamilyFacts(
        "kimi_linear", "KimiLinearForCausalLM", experts=True, latent=True,
        recurrence="channel delta rule",
    ),
    FamilyFacts("mamba2", "Mamba2ForCausalLM", recurrence="state space", alone=True),
    FamilyFacts("olmoe", "OlmoeForCausalLM", experts=True, stretches=True),
    FamilyFacts(
        "gpt_oss", "GptOssForCausalLM", window="alternating", full_every=2, experts=True,
        head_size=64, biases=True, stretches=True,
    ),
    FamilyFacts("granitemoe", "GraniteMoeForCausalLM", experts=True, stretches=True),
    FamilyFacts(
        "glm4_moe", "Glm4MoeForCausalLM", also=("glm4v_moe_text",), experts=True, stretches=True,
        inside=(("attention_bias", True),),
    ),
    FamilyFacts("solar_open", "SolarOpenForCausalLM", experts=True, stretches=True),
    FamilyFacts("dots1", "Dots1ForCausalLM", experts=True, window="alternating", stretches=True),
    FamilyFacts(
        "minimax_m2", "MiniMaxM2ForCausalLM", also=("minimax",), experts=True, stretches=True
    ),
    FamilyFacts(
        "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", experts=True, tied=True, stretches=True
    ),
    FamilyFacts(
        "phimoe", "PhimoeForCausalLM", window="always", experts=True, stretches=True,
        own_fields=("lm_head_bias",),
    ),
    FamilyFacts(
        "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", stretches=True, fixed_ntk=True,
        own_fields=_HUNYUAN,
    ),
    FamilyFacts(
        "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", stretches=True, fixed_ntk=True, experts=True,
        shared_experts=1, own_fields=_HUNYUAN,
    ),
    FamilyFacts("apertus", "ApertusForCausalLM", gated_mlp=False, stretches=True),
    FamilyFacts("nanochat", "NanoChatForCausalLM", gated_mlp=False, stretches=True),
    FamilyFacts(
        "exaone", "ExaoneForCausalLM", computed_by="LlamaForCausalLM", stretches=True,
        words=(
            ("num_layers", "num_hidden_layers"), ("layer_norm_epsilon", "rms_norm_eps"),
            ("activation_function", "hidden_act"),
        ),
    ),
    FamilyFacts(
        "internlm2", "InternLM2ForCausalLM", computed_by="LlamaForCausalLM", stretches=True,
        words=(("bias", "attention_bias"),),
    ),
    FamilyFacts(
        "internlm3", "InternLM3ForCausalLM", computed_by="LlamaForCausalLM", head_size=128,
        stretches=True, words=(("qkv_bias", "attention_bias"), ("bias", "mlp_bias")),
    ),
    FamilyFacts(
        "iquestcoder", "IQuestCoderForCausalLM", computed_by="LlamaForCausalLM", head_size=128,
        stretches=True,
    ),
    FamilyFacts(
        "bailing_moe", "BailingMoeV2ForCausalLM", experts=True, stretches=True,
        own_fields=_BAILING, defaults=(("norm_topk_prob", True), ("routed_scaling_factor", 2.5)),
    ),
    FamilyFacts(
        "sarvam_moe", "SarvamMoEForCausalLM", computed_by="Glm4MoeForCausalLM", head_size=64,
        experts=True, stretches=True, own_fields=_BAILING,
        defaults=(
            ("norm_topk_prob", True), ("routed_scaling_factor", 2.5), ("first_k_dense_replace", 1),
        ),
    ),
    FamilyFacts(
        "sarvam_mla", "SarvamMLAForCausalLM", computed_by="DeepseekV3ForCausalLM",
        own_fields=(*_BAILING, "q_head_dim"),
        defaults=(
            ("norm_topk_prob", True), ("routed_scaling_factor", 2.5), ("first_k_dense_replace", 1),
        ),
        **_LATENT,
    ),
    FamilyFacts("mistral4", "Mistral4ForCausalLM", **_LATENT),
    FamilyFacts("deepseek_v2", "DeepseekV2ForCausalLM", **_LATENT),
    FamilyFacts("deepseek_v3", "DeepseekV3ForCausalLM", also=("kimi_k2",), **_LATENT),
    FamilyFacts(
        "glm4_moe_lite", "Glm4MoeLiteForCausalLM", defaults=(("first_k_dense_replace", 1),),
        **_LATENT,
    ),
    FamilyFacts("deepseek_v32", "DeepseekV32ForCausalLM", index=True, **_LATENT),
    FamilyFacts(
        "mimo_v2_flash", "MiMoV2FlashForCausalLM", head_size=192, window="named", experts=True,
        other_heads=True,
        defaults=(("norm_topk_prob", True), ("partial_rotary_factor", 0.334)),
        own_fields=(
            "v_head_dim", "attention_value_scale", "sliding_window_size", "attention_chunk_size",
            "hybrid_layer_pattern", "hybrid_block_size", "layernorm_epsilon", "swa_rope_theta",
            "swa_num_key_value_heads", "swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim",
            "add_swa_attention_sink_bias", "add_full_attention_sink_bias",
        ),
    ),
    FamilyFacts("glm_moe_dsa", "GlmMoeDsaForCausalLM", index=True, **_LATENT),
    FamilyFacts(
        "minicpm", "MiniCPMForCausalLM", tied=True, stretches=True,
        own_fields=(*_MINICPM, "mup_denominator"),
        defaults=(("scale_emb", 1.0), ("scale_depth", 1.0), ("dim_model_base", 1)),
    ),
    FamilyFacts(
        "minicpm3", "MiniCPM3ForCausalLM", tied=True, latent=True, stretches=True,
        own_fields=_MINICPM,
    ),
    FamilyFacts("youtu", "YoutuForCausalLM", tied=True, latent=True, stretches=True),
    FamilyFacts(
        "llama4_text", "Llama4ForCausalLM", window="chunked", full_every=4, experts=True,
        shared_experts=1, stretches=True, head_size=128,
        own_fields=(
            "intermediate_size_mlp", "attn_temperature_tuning",
            "floor_scale", "attn_scale", "for_llm_compressor", "attention_chunk_size",
        ),
    ),
    FamilyFacts(
        "muse_glimmer_text", "MuseGlimmerForCausalLM", window="alternating", full_every=4,
        gated_attention=True,
        own_fields=(
            "qk_scale_factor", "output_multiplier", "post_norm_eps", "layer_rope_theta",
            "norms_alike",
        ),
    ),
    FamilyFacts("arcee", "ArceeForCausalLM", gated_mlp=False, stretches=True),
    FamilyFacts("nemotron", "NemotronForCausalLM", gated_mlp=False, stretches=True),
    FamilyFacts("seed_oss", "SeedOssForCausalLM", head_size=128, stretches=True),
    FamilyFacts(
        "cwm", "CwmForCausalLM", head_size=128, window="alternating", full_every=4, stretches=True
    ),
    FamilyFacts("helium", "HeliumForCausalLM", head_size=128, stretches=True),
    FamilyFacts("ernie4_5", "Ernie4_5ForCausalLM", head_size=128, tied=True, stretches=True),
    FamilyFacts("glm", "GlmForCausalLM", head_size=128, stretches=True),
    FamilyFacts("glm4", "Glm4ForCausalLM", head_size=128, stretches=True),
    FamilyFacts("glm4v_text", "Glm4vForCausalLM", stretches=True),
    FamilyFacts("glm_ocr_text", "GlmOcrForCausalLM", stretches=True),
    FamilyFacts(
        "exaone4", "Exaone4ForCausalLM", window="alternating", full_every=4, stretches=True
    ),
    FamilyFacts(
        "vaultgemma", "VaultGemmaForCausalLM", tied=True, head_size=256, window="alternating",
        full_every=2, stretches=True,
    ),
    FamilyFacts("granitemoeshared", "GraniteMoeSharedForCausalLM", experts=True, stretches=True),
    FamilyFacts("ministral", "MinistralForCausalLM", window="alternating", stretches=True),
    _plain("jais2", "Jais2ForCausalLM", stretches=True),
    FamilyFacts(
        "hyperclovax", "HyperCLOVAXForCausalLM", stretches=True, own_fields=("use_post_norm",)
    ),
    FamilyFacts("flex_olmo", "FlexOlmoForCausalLM", experts=True, stretches=True),
    FamilyFacts(
        "hy_v3", "HYV3ForCausalLM", head_size=128, experts=True, stretches=True,
        defaults=(("first_k_dense_replace", 1), ("num_shared_experts", 1)),
        own_fields=("router_scaling_factor", "enable_moe_fp32_combine"),
    ),
    FamilyFacts(
        "exaone_moe", "ExaoneMoeForCausalLM", window="alternating", full_every=4, experts=True,
        stretches=True,
        defaults=(
            ("first_k_dense_replace", 1), ("norm_topk_prob", True), ("num_shared_experts", 1),
            ("routed_scaling_factor", 2.5),
        ),
    ),
    FamilyFacts(
        "afmoe", "AfmoeForCausalLM", head_size=128, window="alternating", full_every=4,
        experts=True, gated_attention=True, stretches=True,
        defaults=(("num_dense_layers", 1), ("num_shared_experts", 2)),
        own_fields=(
            "global_attn_every_n_layers", "mup_enabled", "route_norm", "route_scale", "score_func",
            "load_balance_coeff", "num_dense_layers", "num_expert_groups", "num_limited_groups",
        ),
    ),
    FamilyFacts(
        "mellum", "MellumForCausalLM", head_size=128, window="alternating", full_every=1,
        experts=True, defaults=(("norm_topk_prob", True),),
        own_fields=("mtp_layer_types", "mtp_mlp_layer_types"),
    ),
    FamilyFacts(
        "granite_swa", "GraniteSWAForCausalLM", tied=True, window="named", stretches=True,
        own_fields=("layer_rope_theta",),
    ),
    FamilyFacts(
        "granitemoe_swa", "GraniteMoeSWAForCausalLM", window="named", experts=True, stretches=True,
        own_fields=("layer_rope_theta",),
    ),
    FamilyFacts("olmo", "OlmoForCausalLM", stretches=True),
    FamilyFacts("olmo2", "Olmo2ForCausalLM", stretches=True),
    FamilyFacts("olmo3", "Olmo3ForCausalLM", window="alternating", full_every=4),
    FamilyFacts("granite", "GraniteForCausalLM", stretches=True),
    FamilyFacts("smollm3", "SmolLM3ForCausalLM", window="listed", tied=True, stretches=True),
    FamilyFacts("stablelm", "StableLmForCausalLM", stretches=True),
    FamilyFacts("cohere", "CohereForCausalLM", tied=True, stretches=True),
    FamilyFacts(
        "cohere2", "Cohere2ForCausalLM", tied=True, window="alternating", full_every=4,
        stretches=True,
    ),
    FamilyFacts(
        "cohere2_moe", "Cohere2MoeForCausalLM", tied=True, head_size=128, window="alternating",
        full_every=4, experts=True, stretches=True, own_fields=_COHERE_MOE,
    ),
    FamilyFacts("gemma", "GemmaForCausalLM", tied=True, head_size=256, stretches=True),
    FamilyFacts(
        "gemma2", "Gemma2ForCausalLM", tied=True, head_size=256, window="alternating", full_every=2,
        stretches=True,
    ),
    FamilyFacts(
        "gemma3_text", "Gemma3ForCausalLM", tied=True, head_size=256, window="alternating",
        full_every=6,
        inside=(
            ("vocab_size", 262_208), ("max_position_embeddings", 131_072),
            ("num_attention_heads", 8), ("num_key_value_heads", 4), ("head_dim", 256),
            ("rms_norm_eps", 1e-6),
        ),
    ),
    FamilyFacts(
        "gemma3n_text", "Gemma3nForCausalLM", tied=True, head_size=256, window="alternating",
        full_every=5, by_layer=True, streams=True,
        own_fields=(
            "num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input",
            "activation_sparsity_pattern", "activation_sparsity_scale", "altup_active_idx",
            "altup_coef_clip", "altup_correct_scale", "altup_lr_multiplier", "altup_num_inputs",
            "laurel_rank",
        ),
    ),
    _GEMMA_4,
    replace(
        _GEMMA_4, model_type="gemma4_unified_text", architecture="Gemma4UnifiedForCausalLM",
        defaults=(("hidden_size_per_layer_input", 0),),
    ),
    _plain("gpt_neox", "GPTNeoXForCausalLM", stretches=True),
    _plain("gptj", "GPTJForCausalLM"),
    FamilyFacts(
        "falcon", "FalconForCausalLM", gated_mlp=False, tied=True, stretches=True,
        own_fields=("num_kv_heads", "multi_query", "new_decoder_architecture", "heads_in_order"),
    ),
    _plain("phi", "PhiForCausalLM", stretches=True),
    _plain("bloom", "BloomForCausalLM", tied=True),
    FamilyFacts(
        "starcoder2", "Starcoder2ForCausalLM", gated_mlp=False, biases=True, tied=True,
        window="always", stretches=True,
    ),
    _plain("opt", "OPTForCausalLM", tied=True, learned=True),
    _plain("gpt2", "GPT2LMHeadModel", tied=True, learned=True),
)  # fmt: skip

_BY_ARCHITECTURE = {family.architecture: family for family in reversed(FAMILIES)}
_BY_TYPE = {name: family for family in FAMILIES for name in (family.model_type, *family.also)}


def find_family(architecture: object, model_type: str) -> FamilyFacts | None:
    """The family by its class, which runs it, or else by the type of its config."""
    known = _BY_ARCHITECTURE.get(architecture) if isinstance(architecture, str) else None
    return known or _BY_TYPE.get(model_type)
