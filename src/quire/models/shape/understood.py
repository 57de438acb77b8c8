"""The fields of a ``config.json`` that a simulation understands, and what the others are about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_READ = """
    model_type text_config hidden_size n_embd num_attention_heads n_head num_key_value_heads
    head_dim num_hidden_layers n_layer intermediate_size ffn_dim n_inner vocab_size dtype
    torch_dtype max_position_embeddings n_positions seq_length tie_word_embeddings
    word_embed_proj_dim enable_bias sliding_window use_sliding_window max_window_layers
    layer_types sliding_window_pattern _sliding_window_pattern layer_switch ffn_hidden_size
    quantization_config
"""

# Biases and norms that a family may have or not: less than a thousandth of a model's bytes.
_SMALL = """
    attention_bias mlp_bias use_bias use_qkv_bias qkv_bias no_bias qk_norm use_qk_norm
    attention_out_bias qk_layernorm layer_norm_elementwise_affine do_layer_norm_before
    _remove_final_layer_norm
    apply_residual_connection_post_layernorm bias parallel_attn num_ln_in_parallel_attn
"""

# What positions are and how numbers are scaled: it changes texts, and no byte or operation.
_SCALING = """
    rope_theta rope_scaling rope_parameters rope_local_base_freq rope_interleaved rotary_dim
    rotary_pct rotary_emb_base partial_rotary_factor original_max_position_embeddings
    no_rope_layers no_rope_layer_interval use_mrope rms_norm_eps layer_norm_eps
    layer_norm_epsilon norm_epsilon norm_type hidden_act hidden_activation activation_function
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar clip_qkv
    attention_multiplier embedding_multiplier residual_multiplier logits_scaling
    scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 use_parallel_residual
    norm_eps slow_but_exact masked_softmax_fusion logit_scale activation
    position_embedding_type layernorm_full_attention_beta layernorm_linear_attention_beta
    layernorm_mlp_beta
"""

# Of training, of other tasks, of the tokenizer and of who wrote the file.
_ASIDE = """
    _name_or_path name_or_path architectures auto_map transformers_version _commit_hash
    _attn_implementation attn_implementation _attn_implementation_internal unsloth_fixed
    unsloth_version is_llama_config use_flash_attn gradient_checkpointing tokenizer_class
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id cls_token_id mask_token_id
    bos_token eos_token pad_token decoder_start_token_id forced_bos_token_id
    forced_eos_token_id prefix task_specific_params finetuning_task problem_type num_labels
    id2label label2id classifier_dropout summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj initializer_range init_std
    initializer_factor attention_dropout activation_dropout dropout hidden_dropout
    embedding_dropout embed_dropout residual_dropout resid_dropout attn_pdrop embd_pdrop
    resid_pdrop layerdrop dropout_rate attention_probs_dropout_prob hidden_dropout_prob
    pretraining_tp use_cache use_return_dict return_dict return_dict_in_generate output_scores
    output_attentions output_hidden_states is_decoder torchscript use_bfloat16
    tf_legacy_loss remove_invalid_values chunk_size_feed_forward exponential_decay_length_penalty
    n_ctx max_sequence_length max_seq_len model_max_length tokenizer_model_max_length
    max_length min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
    suppress_tokens begin_suppress_tokens cache_implementation offset_alibi bias_dropout_fusion
    skip_bias_add skip_bias_add_qkv hidden_size_per_head n_embed unk_token skip_embedding
    is_matryoshka matryoshka_dimensions classifier_from_token is_original_qwen3_reranker
    ignore_index
"""

UNDERSTOOD = frozenset(" ".join((_READ, _SMALL, _SCALING, _ASIDE)).split())

_EXPERTS = """
    num_local_experts num_experts num_experts_per_tok moe_intermediate_size
    shared_expert_intermediate_size shared_intermediate_size mlp_only_layers decoder_sparse_step
    norm_topk_prob output_router_logits router_aux_loss_coef router_jitter_noise
    swiglu_alpha swiglu_limit experts_per_token initial_context_length
    n_routed_experts moe_num_experts moe_k n_shared_experts moe_num_shared_experts
    first_k_dense_replace moe_layer_freq moe_layer_start_index moe_layer_end_index
    moe_layer_interval mlp_layer_types scoring_func topk_method n_group topk_group
    routed_scaling_factor aux_loss_alpha seq_aux ep_size moe_norm_min moe_use_aux_free
    use_routing_bias input_jitter_noise qk_norm_type num_nextn_predict_layers num_mtp_modules
    mtp_transformer_layers use_mtp num_mtp_layers shared_moe_mode mlp_intermediate_size
    num_experts_per_token num_shared_experts interleave_moe_layer_step moe_layers moe_capacity
    moe_gate moe_group rope_ntk_beta rope_ntk_alpha scoring_function shared_gate_apart
"""

_LATENT = """
    kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim rope_interleave
    qk_head_dim embedding_initializer_range
"""

_INDEX = """
    index_topk index_n_heads index_head_dim index_topk_freq index_skip_topk_offset
    index_topk_pattern indexer_types indexer_rope_interleave
"""

_STATES = """
    linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim full_attention_interval attn_output_gate mamba_ssm_dtype mrope_section
    mtp_num_hidden_layers mtp_use_dedicated_embeddings mtp_layer_types
    mamba_n_heads mamba_num_heads num_heads mamba_n_groups n_groups mamba_d_state ssm_state_size
    state_size mamba_d_head mamba_head_dim mamba_d_conv conv_kernel mamba_expand expand mamba_d_ssm
    mamba_chunk_size chunk_size mamba_conv_bias use_conv_bias mamba_proj_bias time_step_limit
    time_step_min time_step_max time_step_floor time_step_rank residual_in_fp32
    rescale_prenorm_residual mamba_hidden_act mlp_hidden_act use_mamba_kernels
    mamba_ssm_cache_dtype num_logits_to_keep attn_layer_indices layers_block_type
    hybrid_override_pattern z_loss_coefficient position_embedding_type conv_bias conv_L_cache
    full_attn_idxs block_dim block_ff_dim block_ffn_dim_multiplier block_auto_adjust_ff_dim
    block_multiple_of block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
    block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init tie_embedding norm_eps theta
    mamba_norm_before_gate mamba_rms_norm mamba_use_mlp projectors_bias lm_head_multiplier
    mlp_multipliers key_multiplier attention_out_multiplier attention_in_multiplier ssm_multipliers
    ssm_in_multiplier ssm_out_multiplier mlp_expansion_factor moe_latent_size
    moe_shared_expert_intermediate_size moe_shared_expert_overlap mtp_layers_block_type
    mtp_hybrid_override_pattern n_routed_experts n_shared_experts moe_intermediate_size
    num_experts_per_tok norm_topk_prob routed_scaling_factor n_group topk_group
    output_router_logits mamba_n_layers layer_norm_epsilon num_dense_layers use_expert_bias
    moe_layers first_k_dense_replace linear_heads_tiled linear_heads_apart init_method
    normalization_function use_pos_enc attention_head_dim linear_attn_config linear_num_heads
    linear_head_dim mla_use_nope moe_renormalize moe_router_activation_func num_expert_group
    use_grouped_topk num_experts_per_token num_shared_experts
"""

OF_EXPERTS = frozenset(_EXPERTS.split())
"""What is understood where MLPs are mixtures of experts."""

OF_LATENTS = frozenset(_LATENT.split())
"""And where attention is latent."""

OF_INDEXES = frozenset(_INDEX.split())
"""And where tokens are chosen by an index."""

OF_STATES = frozenset(_STATES.split())
"""And where layers keep states."""

GUESSING = (
    "num_nextn_predict_layers", "num_mtp_modules", "use_mtp", "mtp_transformer_layers",
    "num_mtp_layers", "mtp_num_hidden_layers",
)  # fmt: skip
"""Of layers that guess further tokens, which only speculation loads."""

_OF_IMAGES = re.compile(
    r"vision|image|video|audio|mm_tokens|_token_index$|_token_id$|processor_class|placeholder"
    r"|projector|spatial_merge|^downsample_|^adapter_layer_norm|^out_hidden_size$|^projection_|^alignment_"
    r"|^merge|^insert_layer_id$|^patch_size$|^scale_factor$|^visual_|^media_"
)

_AT_REST: Mapping[str, object] = {
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_embedding_sharing": True,
    "order_of_interleaved_layers": "local_attn_first",
}
"""Of Cohere's, and what its code has whatever they say."""

_KINDS = (
    (r"^index", "an index that chooses what is attended to"),
    (r"^hc_|^altup|hyper_connection", "streams beside the residual one"),
    (r"compress_r|compressor", "attention over compressed texts"),
    (r"ngram", "tables of n-grams"),
    (r"expert|moe|routed|router|topk_|first_k_dense|mlp_only|decoder_sparse|n_group|scoring_func"
     r"|norm_topk|aux_loss|seq_aux|ep_size", "mixtures of experts"),
    (r"lora_rank|qk_nope|qk_rope|v_head_dim|o_lora", "latent attention"),
    (r"quant|compress|kv_cache_scheme", "weights that are stored rounded"),
    (r"window|chunk|local_attention|attention_types|attention_layers", "windows"),
    (r"mamba|ssm|linear_|conv|rwkv|time_|hybrid|state|attn_layer|full_attention", "layers without "
     "attention, or with another one"),
    (r"shared_layers|share|cla_", "layers that share keys and values"),
    (r"vision|image|audio|video|speech|mm_|projector", "images and sounds"),
    (r"encoder|cross", "encoders"),
    (r"multi_query|kv_heads|attention_heads|heads_per_layer|block_configs|new_decoder",
     "other numbers of heads"),
    (r"nextn|mtp|draft|medusa", "layers that guess further tokens"),
)  # fmt: skip


def kind_of(name: str) -> str:
    """The likely subject of a field that is not known."""
    for pattern, kind in _KINDS:
        if re.search(pattern, name):
            return kind
    return "fields that are not known"


def is_of_images(name: str) -> bool:
    """Whether a field is about the part of a model that sees."""
    return _OF_IMAGES.search(name) is not None


def is_neutral(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a field says that something is not there, or what is so anyway."""
    value = values.get(name)
    if name in _AT_REST:
        return value == _AT_REST[name]
    if name == "sliding_window_size":  # Gemma 2's files have both
        return value == values.get("sliding_window")
    if name == "num_experts" or name.endswith("_experts"):
        return value in (None, 0, 1)
    if name == "attn_type_list":  # MiniMax: 1 is attention, 0 is none
        return isinstance(value, list) and set(map(str, value)) == {"1"}
    return value is None or value is False or value in (0, "", [], {}, "none")
