"""What Llama-like architectures do that their configs do not say: a record for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quire.kernels.mlps import XIELU
from quire.models import hybrids, mixtures, variants
from quire.models.blueprint import Blueprint, HeadNorms, NormKind, RowOrder, TensorNames
from quire.models.config import ConfigFields

_PLAIN = TensorNames()
_SANDWICHED = TensorNames(
    attention_output="post_attention_layernorm",
    mlp_before="pre_feedforward_layernorm",
    mlp_output="post_feedforward_layernorm",
)
_AFTER = TensorNames(
    attention_before=None,
    attention_output="post_attention_layernorm",
    mlp_before=None,
    mlp_output="post_feedforward_layernorm",
)
_GUESSING = replace(_PLAIN, beside=("mtp.",))
_ONE_NORM = TensorNames(mlp_before=None)
_FUSED = TensorNames(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))

_RMS = NormKind()
_UNBIASED = NormKind(centred=True)
_LAYER_NORM = NormKind(centred=True, bias=True)
_BIDIRECTIONAL = ("use_bidirectional_attention",)


@dataclass(frozen=True)
class Traits:
    """The traits of one architecture. A name in place of a truth is the field that has it."""

    names: TensorNames = _PLAIN
    qkv_bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    biases: bool = False  # where such a field is absent
    head_norms: HeadNorms | None = None
    norm: NormKind = _RMS
    eps: str | float = "rms_norm_eps"
    activation: str = "silu"  # where ``activation_field`` is absent
    activation_field: str = "hidden_act"
    parallel: bool | str = False
    row_order: RowOrder = "heads"
    theta: float = 10_000.0  # where the config has none
    rotary_share: float | None = None  # likewise; None: all of a head is rotated
    varied: Callable[[ConfigFields, Blueprint], Blueprint] = lambda _, plan: plan
    foreign: tuple[str, ...] = ()  # fields that transformers alone computes


_GEMMA_1 = Traits(
    norm=NormKind(around_one=True),
    mlp_bias=False,
    activation="gelu_pytorch_tanh",
    varied=variants.gemma,
    foreign=_BIDIRECTIONAL,
)
_GEMMA_2 = replace(
    _GEMMA_1,
    names=_SANDWICHED,
    activation_field="hidden_activation",
    varied=variants.gemma2,
)
_GEMMA_3 = replace(
    _GEMMA_2,
    head_norms="each",
    varied=variants.gemma3,
    foreign=(*_BIDIRECTIONAL, "attn_logit_softcapping"),
)
_GEMMA_4 = replace(_GEMMA_2, norm=_RMS, head_norms="each", varied=mixtures.gemma4, foreign=())
_COHERE = Traits(
    names=_ONE_NORM,
    mlp_bias=False,
    norm=_UNBIASED,
    eps="layer_norm_eps",
    parallel=True,
    row_order="pairs",
    theta=500_000.0,
    varied=variants.cohere,
    foreign=("use_qk_norm",),
)
_OLMO_2 = Traits(names=_AFTER, mlp_bias=False, head_norms="all")
_QWEN_HYBRID = Traits(
    names=_GUESSING,
    mlp_bias=False,
    head_norms="each",
    norm=NormKind(around_one=True),
    rotary_share=0.25,
    varied=hybrids.qwen3_5,
)
_LFM2 = Traits(
    names=TensorNames(
        final_norm="embedding_norm",
        output="self_attn.out_proj",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        attention_before="operator_norm",
        mlp_before="ffn_norm",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
    ),
    mlp_bias=False,
    head_norms="each",
    eps="norm_eps",
    theta=1_000_000.0,
    varied=hybrids.lfm2,
)
_FEED_FORWARD = TensorNames(
    final_norm="final_layernorm",
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    mlp_before="pre_ff_layernorm",
)
_BACKBONE = TensorNames(
    roots=("backbone", "model"),
    embedding="embeddings",
    final_norm="norm_f",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    up=("mixer.up_proj",),
    down="mixer.down_proj",
    attention_before="norm",
    mlp_before="norm",
)
_MISTRAL = Traits(qkv_bias=False, output_bias=False)

_GATE_AND_UP = replace(_PLAIN, up=("mlp.gate_up_proj",))
_GLM = Traits(
    names=_GATE_AND_UP, output_bias=False, mlp_bias=False, row_order="pairs", rotary_share=0.5,
)  # fmt: skip
_GLM_4 = replace(
    _GLM,
    names=replace(
        _GATE_AND_UP, attention_output="post_self_attn_layernorm", mlp_output="post_mlp_layernorm"
    ),
)
_ERNIE = Traits(
    qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", row_order="pairs",
    theta=500_000.0,
)  # fmt: skip
_UNGATED = replace(_PLAIN, up=("mlp.up_proj",))
_GLM_MOE = Traits(output_bias=False, mlp_bias=False, rotary_share=0.5, varied=mixtures.glm)

_SINKS = replace(_PLAIN, sink_logits=("self_attn.sinks",))

_DEEPSEEK = Traits(mlp_bias=False, varied=mixtures.deepseek_v3)
_HUNYUAN = Traits(
    names=replace(
        _PLAIN, query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"
    ),
    mlp_bias=False,
    head_norms="each turned",
    varied=variants.hunyuan,
)

_BAILING = TensorNames(
    embedding="word_embeddings",
    qkv=("attention.query_key_value",),
    output="attention.dense",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
)

TRAITS: Mapping[str, Traits] = {
    "LlamaForCausalLM": Traits(),
    "MistralForCausalLM": _MISTRAL,
    "Ministral3ForCausalLM": replace(_MISTRAL, theta=1_000_000.0),
    "MinistralForCausalLM": replace(_MISTRAL, mlp_bias=False),
    "Phi3ForCausalLM": Traits(names=_FUSED, qkv_bias=False, output_bias=False, rotary_share=1.0),
    "Qwen2ForCausalLM": Traits(qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": Traits(head_norms="each"),
    "MixtralForCausalLM": replace(_MISTRAL, mlp_bias=False, varied=mixtures.mixtral),
    "Qwen2MoeForCausalLM": Traits(
        qkv_bias="qkv_bias", output_bias=False, mlp_bias=False, biases=True, varied=mixtures.qwen
    ),
    "Qwen3MoeForCausalLM": Traits(mlp_bias=False, head_norms="each", varied=mixtures.qwen),
    "Qwen3NextForCausalLM": replace(_QWEN_HYBRID, varied=hybrids.qwen3_next),
    "Qwen3_5ForCausalLM": _QWEN_HYBRID,
    "Qwen3_5MoeForCausalLM": replace(_QWEN_HYBRID, varied=hybrids.qwen3_5_moe),
    "KimiLinearForCausalLM": Traits(
        qkv_bias=False, output_bias=False, mlp_bias=False, varied=hybrids.kimi
    ),
    "Lfm2ForCausalLM": _LFM2,
    "Lfm3ForCausalLM": replace(
        _LFM2,
        names=replace(
            _LFM2.names,
            output="self_attn.o_proj",
            attention_output="post_operator_norm",
            mlp_output="post_ffn_norm",
            query_norm="self_attn.q_norm",
            key_norm="self_attn.k_norm",
            gate="self_attn.gate_proj",
        ),
        varied=hybrids.lfm3,
        foreign=("attention_bias",),
    ),
    "Lfm2MoeForCausalLM": replace(_LFM2, varied=hybrids.lfm2_moe),
    "GraniteMoeHybridForCausalLM": Traits(
        names=TensorNames(up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
        mlp_bias=False,
        varied=hybrids.granite,
    ),
    "BambaForCausalLM": Traits(names=_FEED_FORWARD, rotary_share=0.5, varied=hybrids.bamba),
    "FalconH1ForCausalLM": Traits(names=_FEED_FORWARD, varied=hybrids.falcon),
    "NemotronHForCausalLM": Traits(
        names=_BACKBONE,
        qkv_bias=False,
        output_bias=False,
        eps="layer_norm_epsilon",
        varied=hybrids.nemotron,
    ),
    "Mamba2ForCausalLM": Traits(
        names=_BACKBONE, mlp_bias=False, eps="layer_norm_epsilon", varied=hybrids.mamba2
    ),
    "OlmoeForCausalLM": Traits(
        mlp_bias=False, head_norms="all", varied=mixtures.qwen, foreign=("clip_qkv",)
    ),
    "GptOssForCausalLM": Traits(
        names=_SINKS,
        biases=True,
        mlp_bias=False,
        theta=150_000.0,
        varied=mixtures.gpt_oss,
    ),
    "GraniteMoeForCausalLM": Traits(mlp_bias=False, varied=mixtures.granite),
    "GraniteMoeSharedForCausalLM": Traits(mlp_bias=False, varied=mixtures.granite),
    "GemmaForCausalLM": _GEMMA_1,
    "Gemma2ForCausalLM": _GEMMA_2,
    "Gemma3ForCausalLM": _GEMMA_3,
    "Gemma3nForCausalLM": replace(_GEMMA_4, varied=variants.gemma3n),
    "Gemma4ForCausalLM": _GEMMA_4,
    "Gemma4UnifiedForCausalLM": _GEMMA_4,
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": replace(_COHERE, theta=10_000.0, varied=variants.cohere2, foreign=()),
    "Cohere2MoeForCausalLM": replace(_COHERE, theta=10_000.0, varied=mixtures.cohere2, foreign=()),
    "OlmoForCausalLM": Traits(
        mlp_bias=False,
        norm=NormKind(centred=True, weight=False),
        eps=1e-5,
        foreign=("clip_qkv",),
    ),
    "Olmo2ForCausalLM": _OLMO_2,
    "Olmo3ForCausalLM": replace(_OLMO_2, theta=500_000.0, varied=variants.olmo3),
    "SmolLM3ForCausalLM": Traits(theta=2_000_000.0, varied=variants.smollm3),
    "FlexOlmoForCausalLM": replace(_OLMO_2, theta=500_000.0, varied=mixtures.qwen),
    "GraniteForCausalLM": Traits(varied=variants.granite),
    "GraniteSWAForCausalLM": Traits(names=_SINKS, varied=variants.granite_swa),
    "GraniteMoeSWAForCausalLM": Traits(names=_SINKS, mlp_bias=False, varied=mixtures.granite_swa),
    "HyperCLOVAXForCausalLM": Traits(
        names=replace(_PLAIN, attention_output="post_norm1", mlp_output="post_norm2"),
        varied=variants.hyperclovax,
    ),
    "Jais2ForCausalLM": Traits(
        names=_UNGATED, biases=True, norm=_LAYER_NORM, eps="layer_norm_eps", activation="relu2"
    ),
    "MuseGlimmerForCausalLM": Traits(
        names=replace(_SANDWICHED, gate="self_attn.gate_proj"),
        mlp_bias=False,
        norm=NormKind(around_one=True),
        activation_field="hidden_activation",
        varied=variants.muse,
        foreign=("attention_bias",),
    ),
    "ArceeForCausalLM": Traits(names=_UNGATED, activation="relu2"),
    "NemotronForCausalLM": Traits(
        names=_UNGATED,
        norm=NormKind(centred=True, bias=True, around_one=True),
        eps="norm_eps",
        activation="relu2",
        rotary_share=0.5,
    ),
    "SeedOssForCausalLM": Traits(output_bias="attention_out_bias"),
    "CwmForCausalLM": Traits(qkv_bias=False, output_bias=False, theta=1_000_000.0),
    "HeliumForCausalLM": Traits(output_bias=False, row_order="pairs", theta=100_000.0),
    "Ernie4_5ForCausalLM": _ERNIE,
    "Ernie4_5_MoeForCausalLM": replace(_ERNIE, varied=mixtures.ernie, foreign=("use_bias",)),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": _GLM_4,
    "Glm4vForCausalLM": replace(_GLM_4, qkv_bias=True, rotary_share=1.0),
    "GlmOcrForCausalLM": replace(_GLM_4, qkv_bias=False, rotary_share=1.0),
    "Glm4MoeForCausalLM": _GLM_MOE,
    "SolarOpenForCausalLM": replace(_GLM_MOE, rotary_share=1.0, theta=1_000_000.0),
    "DeepseekV2ForCausalLM": Traits(varied=mixtures.deepseek_v2),
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": replace(_DEEPSEEK, varied=mixtures.deepseek_v32),
    "GlmMoeDsaForCausalLM": replace(_DEEPSEEK, varied=mixtures.glm_dsa),
    "MiMoV2FlashForCausalLM": Traits(
        names=replace(
            _PLAIN,
            sink_logits=("self_attn.attention_sink_bias", "self_attn.sinks"),
            beside=("model.mtp.",),
        ),
        output_bias=False,
        mlp_bias=False,
        rotary_share=0.334,
        varied=mixtures.mimo,
    ),
    "Mistral4ForCausalLM": replace(_DEEPSEEK, rotary_share=1.0, varied=mixtures.mistral4),
    "PhimoeForCausalLM": Traits(
        mlp_bias=False, norm=_LAYER_NORM, theta=1_000_000.0, varied=mixtures.phimoe
    ),
    "HunYuanDenseV1ForCausalLM": _HUNYUAN,
    "HunYuanMoEV1ForCausalLM": replace(_HUNYUAN, varied=mixtures.hunyuan),
    "ApertusForCausalLM": Traits(
        names=replace(
            _UNGATED,
            attention_before="attention_layernorm",
            mlp_before="feedforward_layernorm",
        ),
        mlp_bias=False,
        head_norms="each",
        activation=XIELU,
        theta=12_000_000.0,
        varied=variants.apertus,
    ),
    "NanoChatForCausalLM": Traits(
        names=replace(_PLAIN, up=("mlp.fc1",), down="mlp.fc2"),
        mlp_bias=False,
        head_norms="bare",
        norm=NormKind(weight=False),
        activation="relu2",
        varied=variants.nanochat,
    ),
    "Llama4ForCausalLM": Traits(
        names=replace(
            _PLAIN,
            up=("feed_forward.gate_proj", "feed_forward.up_proj"),
            down="feed_forward.down_proj",
        ),
        mlp_bias=False,
        row_order="pairs",
        theta=500_000.0,
        varied=mixtures.llama4,
    ),
    "MiniCPMForCausalLM": Traits(varied=variants.minicpm, foreign=("sparse_config", "num_experts")),
    "MiniCPM3ForCausalLM": Traits(varied=variants.minicpm3),
    "IQuestCoderForCausalLM": Traits(foreign=("clip_qkv", "use_sliding_window")),
    "InternLM2ForCausalLM": Traits(
        names=TensorNames(
            embedding="tok_embeddings",
            heads=("output",),
            qkv=("attention.wqkv",),
            output="attention.wo",
            up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            attention_before="attention_norm",
            mlp_before="ffn_norm",
        ),
        mlp_bias=False,
        row_order="groups",
    ),
    "InternLM3ForCausalLM": Traits(output_bias="mlp_bias"),
    "ExaoneForCausalLM": Traits(
        names=TensorNames(
            roots=("transformer",),
            embedding="wte",
            layers="h",
            final_norm="ln_f",
            qkv=tuple(f"attn.attention.{part}_proj" for part in "qkv"),
            output="attn.attention.out_proj",
            up=("mlp.c_fc_0", "mlp.c_fc_1"),
            down="mlp.c_proj",
            attention_before="ln_1",
            mlp_before="ln_2",
        ),
        theta=500_000.0,
    ),
    "BailingMoeV2ForCausalLM": Traits(
        names=_BAILING,
        qkv_bias="use_qkv_bias",
        output_bias="use_bias",
        mlp_bias=False,
        rotary_share=0.5,
        varied=mixtures.bailing,
        foreign=("norm_head", "use_sliding_window"),
    ),
    "SarvamMoEForCausalLM": Traits(
        names=_BAILING,
        qkv_bias="use_qkv_bias",
        output_bias="use_bias",
        mlp_bias=False,
        rotary_share=1.0,
        theta=8_000_000.0,
        varied=mixtures.bailing,
        foreign=("norm_head",),
    ),
    "SarvamMLAForCausalLM": Traits(mlp_bias=False, varied=mixtures.sarvam_mla),
    "YoutuForCausalLM": Traits(mlp_bias=False, varied=variants.latent),
    "Dots1ForCausalLM": Traits(mlp_bias=False, head_norms="each", varied=mixtures.deepseek),
    "ExaoneMoeForCausalLM": Traits(
        names=_GUESSING,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms="each",
        varied=mixtures.exaone,
    ),
    "HYV3ForCausalLM": Traits(
        mlp_bias=False,
        head_norms="each",
        theta=11_158_840.0,
        varied=mixtures.hy_v3,
        foreign=("mlp_bias",),
    ),
    "MellumForCausalLM": Traits(
        names=_GUESSING, mlp_bias=False, head_norms="each", varied=mixtures.mellum
    ),
    "AfmoeForCausalLM": Traits(
        names=TensorNames(
            attention_output="post_attention_layernorm",
            mlp_before="pre_mlp_layernorm",
            mlp_output="post_mlp_layernorm",
            gate="self_attn.gate_proj",
        ),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms="each",
        varied=mixtures.afmoe,
        foreign=("attention_bias",),
    ),
    "MiniMaxM2ForCausalLM": Traits(
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms="all",
        rotary_share=1.0,
        theta=5_000_000.0,
        varied=mixtures.minimax,
    ),
    "Exaone4ForCausalLM": replace(
        _OLMO_2, qkv_bias=False, output_bias=False, head_norms="each", varied=variants.exaone4
    ),
    "VaultGemmaForCausalLM": replace(
        _GEMMA_2, names=replace(_PLAIN, mlp_before="pre_feedforward_layernorm")
    ),
    "StableLmForCausalLM": Traits(
        qkv_bias="use_qkv_bias",
        output_bias=False,
        mlp_bias=False,
        norm=_LAYER_NORM,
        eps="layer_norm_eps",
        parallel="use_parallel_residual",
        rotary_share=0.25,
        foreign=("qk_layernorm",),
    ),
    "Starcoder2ForCausalLM": Traits(
        names=TensorNames(up=("mlp.c_fc",), down="mlp.c_proj"),
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        biases=True,
        norm=_LAYER_NORM,
        eps="norm_epsilon",
        activation="gelu_pytorch_tanh",
    ),
}
