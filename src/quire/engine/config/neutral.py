"""vLLM's options that ask for what Quire does anyway: accepted in Python and as flags.

Any other value of theirs is refused with the reason; so is an unknown option.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.core.errors import ConfigError, shown

logger = logging.getLogger(__name__)

ANY = object()
"""In place of values: every value is accepted, for none changes an answer."""

_SWITCH = (True, False)
_OFF = (False,)
_NOTHING: tuple[object, ...] = ()


class Neutral(NamedTuple):
    """An option, and the values that change nothing; None and empty values never do."""

    name: str
    why: str
    values: tuple[object, ...]

    def takes(self, value: object) -> bool:
        if value is None or self.values == (ANY,):
            return True
        if isinstance(value, (str, bytes, Mapping, list, tuple, set, frozenset)) and not value:
            return True
        if isinstance(value, Mapping):  # {"image": 0}
            return not any(value.values())
        return any(value == one and isinstance(value, bool) == isinstance(one, bool)
                   for one in self.values)  # fmt: skip

    def refusal(self, spelled: str, value: object) -> str:
        """The error message for a value that is not accepted."""
        allowed = " or ".join(map(str, self.values)) or "left out"
        return f"{spelled} may only be {allowed}, not {value}: {self.why}"

    @property
    def is_switch(self) -> bool:
        return bool(self.values) and all(isinstance(one, bool) for one in self.values)


_ONE = (1,)
_TEXTS = "the text of requests and answers is never logged; each request has a line"
_BOTH = "every model with a head generates text, and every model gives embeddings"
_ALIKE = "there is one way to read and run a model"
_REPLICAS = "one engine serves; quire deploy MODEL --replicas N starts N of them"
_CHUNKS = "long prompts are always computed in chunks"
_LAYERS = "ranks divide every layer"
_EXPERTS = "ranks divide each expert"
_MEMORY = "weights stay on the device that computes with them"
_KERNELS = "kernels are compiled when Quire is installed, and chosen for the machine"
_MEDIA = "models read text only"
_PLAN = "each step is planned by itself"
_STATES = "states are float32, and which of them are kept is weighed as they come"
_METRICS = "the metrics are fixed"
_FILES = "a model is read from its own files"

COMMON = (
    Neutral("pipeline_parallel_size", _LAYERS, _ONE),
    Neutral("data_parallel_size", _REPLICAS, _ONE),
    Neutral("api_server_count", "one process serves", _ONE),
    Neutral("disable_frontend_multiprocessing", "one process serves", _SWITCH),
    Neutral("disable_custom_all_reduce", "there is one all-reduce", _SWITCH),
    Neutral("enable_chunked_prefill", _CHUNKS, (True,)),
    Neutral("num_scheduler_steps", _PLAN, _ONE),
    Neutral("use_v2_block_manager", "there is one block manager", _SWITCH),
    Neutral("cpu_offload_gb", _MEMORY, (0,)),
    Neutral("kv_offloading_backend", "there is one way to keep blocks in main memory", ("native",)),
    Neutral("lora_dtype", "adapters are kept in the model's dtype", ("auto",)),
    Neutral("trust_remote_code", "code that comes with a model is never run; a model that "
            "needs it is refused when it is loaded", _SWITCH),
    Neutral("load_format", "weights are read from safetensors or GGUF files",
            ("auto", "safetensors", "gguf")),
    Neutral("tokenizer_mode", "the tokenizer's files say what it is", ("auto", "hf")),
    Neutral("config_format", _ALIKE, ("auto", "hf")),
    Neutral("model_impl", _ALIKE, ("auto",)),
    Neutral("task", _BOTH, ("auto", "generate", "embed", "embedding", "score")),
    Neutral("runner", _BOTH, ("auto", "generate", "pooling")),
    Neutral("convert", _BOTH, ("auto", "none", "embed")),
    Neutral("response_role", "answers have the role assistant", ("assistant",)),
    Neutral("chat_template_content_format", "the template decides how it gets messages",
            ("auto", "string")),
    Neutral("enable_request_id_headers", "every answer has an x-request-id", (True,)),
    Neutral("enable_offline_docs", "/docs needs no network", (True,)),
    Neutral("enable_server_load_tracking", "/load and /metrics show the load", (True,)),
    Neutral("disable_log_requests", _TEXTS, _SWITCH),
    Neutral("enable_log_requests", _TEXTS, _SWITCH),
    Neutral("disable_log_stats", "statistics are in the metrics, not in the log", _SWITCH),
)  # fmt: skip
"""The ones that start scripts use most."""

_RARE: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    _LAYERS: {
        "prefill_context_parallel_size": _ONE, "decode_context_parallel_size": _ONE,
        "dcp_comm_backend": _NOTHING, "dcp_q_replicate": _OFF, "dcp_kv_cache_interleave_size": _ONE,
        "cp_kv_cache_interleave_size": _ONE, "enable_hc_sp": _OFF, "device_ids": _NOTHING,
        "enable_batch_sharded_sampling": _SWITCH, "max_parallel_loading_workers": (ANY,),
        "worker_use_ray": _OFF, "ray_workers_use_nsight": _OFF, "numa_bind": _SWITCH,
        "numa_bind_nodes": _NOTHING, "numa_bind_cpus": _NOTHING, "enable_nccl_comm_suspend": _OFF,
        "cpu_distributed_timeout_seconds": (ANY,), "enable_shm_tensor_arena": _SWITCH,
        "disable_nccl_for_dp_synchronization": _SWITCH, "enable_fault_tolerance": _OFF,
        "fault_tolerance_config": _NOTHING, "worker_cls": ("auto",),
        "worker_extension_cls": _NOTHING,
    },
    _REPLICAS: {
        "data_parallel_rank": (0,), "data_parallel_start_rank": (0,),
        "data_parallel_size_local": _ONE, "data_parallel_address": _NOTHING,
        "data_parallel_rpc_port": _NOTHING, "data_parallel_hybrid_lb": _OFF,
        "data_parallel_external_lb": _OFF, "data_parallel_multi_port_external_lb": _OFF,
        "data_parallel_backend": ("mp", "ray"), "dp_sync_interval": (ANY,),
        "renderer_num_workers": _ONE,
    },
    _EXPERTS: {
        "enable_expert_parallel": _OFF, "enable_ep_weight_filter": _OFF, "enable_eplb": _OFF,
        "eplb_config": _NOTHING, "expert_placement_strategy": ("linear",),
        "all2all_backend": (ANY,), "enable_elastic_ep": _OFF, "elastic_ep_max_dp_size": _NOTHING,
        "enable_dbo": _OFF, "ubatch_size": (0,), "dbo_decode_token_threshold": (ANY,),
        "dbo_prefill_token_threshold": (ANY,),
    },
    _CHUNKS: {
        "disable_chunked_mm_input": _SWITCH, "long_prefill_token_threshold": (0,),
        "long_prefill_token_threshold_adaptive": _OFF, "max_num_partial_prefills": _ONE,
        "max_long_partial_prefills": _ONE,
    },
    _PLAN: {
        "multi_step_stream_outputs": _SWITCH, "scheduler_delay_factor": (0,),
        "scheduler_reserve_full_isl": _SWITCH, "watermark": (0,), "scheduler_cls": _NOTHING,
        "prefill_schedule_interval": _ONE, "max_num_scheduled_tokens": _NOTHING,
        "max_num_active_seqs": _NOTHING, "max_num_queued_reqs": _NOTHING,
        "max_num_queued_tokens": _NOTHING, "disable_async_output_proc": _SWITCH,
        "num_lookahead_slots": (0,), "async_engine_args": _NOTHING,
        "disable_hybrid_kv_cache_manager": _SWITCH, "swa_bounded_replay": _SWITCH,
        "kv_sharing_fast_prefill": _OFF, "performance_mode": (ANY,),
    },
    _MEMORY: {
        "offload_backend": ("auto",), "cpu_offload_params": _NOTHING, "offload_group_size": (0,),
        "offload_num_in_group": _ONE, "offload_prefetch_step": (ANY,), "offload_params": _NOTHING,
        "enable_sleep_mode": _OFF, "sleep_mode_offload_cudagraph": _OFF,
        "sleep_preserve_parameter_names": _NOTHING, "enable_cumem_allocator": _SWITCH,
        "use_tqdm_on_load": _SWITCH, "pt_load_map_location": ("cpu",),
        "safetensors_load_strategy": (ANY,), "safetensors_prefetch_num_threads": (ANY,),
        "safetensors_prefetch_block_size": (ANY,),
    },
    _KERNELS: {
        "compilation_config": (ANY,), "optimization_level": (ANY,),
        "cudagraph_capture_sizes": (ANY,),
        "max_cudagraph_capture_size": (ANY,), "max_seq_len_to_capture": (ANY,),
        "max_context_len_to_capture": (ANY,), "ir_op_priority": (ANY,), "moe_backend": (ANY,),
        "linear_backend": (ANY,), "sparse_indexer_topk_backend": (ANY,), "attention_config": (ANY,),
        "attention_backend": (ANY,), "kernel_config": (ANY,), "enable_flashinfer_autotune": _SWITCH,
        "disable_cascade_attn": _SWITCH, "gdn_prefill_backend": (ANY,),
        "kda_prefill_backend": (ANY,), "kda_decode_backend": (ANY,),
        "jit_monitor_mode": (ANY,), "jit_monitor_verbose": _SWITCH,
        "use_fp64_gumbel": _OFF,
    },
    _MEDIA: {
        "allowed_local_media_path": _NOTHING, "allowed_media_domains": _NOTHING,
        "language_model_only": _SWITCH, "limit_mm_per_prompt": _NOTHING, "enable_mm_embeds": _OFF,
        "interleave_mm_strings": _OFF, "media_io_kwargs": _NOTHING, "mm_processor_kwargs": _NOTHING,
        "mm_processor_cache_gb": (ANY,), "mm_processor_cache_type": (ANY,),
        "disable_mm_preprocessor_cache": _SWITCH, "mm_hasher_algorithm": (ANY,),
        "mm_shm_cache_max_object_size_mb": (ANY,), "mm_encoder_only": _OFF,
        "mm_encoder_tp_mode": (ANY,), "mm_encoder_attn_backend": (ANY,),
        "mm_encoder_attn_dtype": (ANY,), "mm_encoder_fp8_scale_path": _NOTHING,
        "mm_encoder_fp8_scale_save_path": _NOTHING, "mm_encoder_fp8_scale_save_margin": (ANY,),
        "io_processor_plugin": _NOTHING, "skip_mm_profiling": _SWITCH,
        "video_pruning_rate": _NOTHING, "video_pruning_method": (ANY,), "mm_tensor_ipc": (ANY,),
        "mm_processor_device": (ANY,), "mm_ipc_gpu_memory_gb": (ANY,),
        "mm_device_do_normalize": _SWITCH, "enable_mm_processor_stats": _SWITCH,
        "default_mm_loras": _NOTHING,
        "enable_tower_connector_lora": _OFF, "ec_transfer_config": _NOTHING,
        "ec_manager_config": _NOTHING,
    },
    _STATES: {
        "mamba_config": _NOTHING, "mamba_cache_dtype": (ANY,), "mamba_ssm_cache_dtype": (ANY,),
        "mamba_block_size": (ANY,), "mamba_cache_mode": (ANY,), "mamba_backend": (ANY,),
        "mamba_ssu_algorithm": (ANY,), "enable_mamba_shared_prefix_checkpoint": _OFF,
        "enable_mamba_cache_stochastic_rounding": _OFF, "mamba_cache_philox_rounds": (ANY,),
        "replayssm_buffer_len": (ANY,), "use_replayssm": _OFF, "diffusion_config": _NOTHING,
        "engram_config": _NOTHING,
    },
    _METRICS: {
        "show_hidden_metrics_for_version": _NOTHING, "collect_detailed_traces": _NOTHING,
        "per_request_spec_decode_metrics": ("none",), "kv_cache_metrics": _OFF,
        "kv_cache_metrics_sample": (ANY,), "custom_histogram_buckets": _NOTHING,
        "cudagraph_metrics": _OFF, "enable_layerwise_nvtx_tracing": _OFF,
        "enable_mfu_metrics": _OFF, "enable_logging_iteration_details": _OFF,
        "aggregate_engine_logging": _SWITCH, "profiler_config": _NOTHING,
        "aux_output_config": _NOTHING, "logging_config": _NOTHING, "log_config_file": _NOTHING,
        "fail_on_environ_validation": _SWITCH,
    },
    _FILES: {
        "model_weights": _NOTHING, "hf_config_path": _NOTHING, "code_revision": _NOTHING,
        "tokenizer_revision": _NOTHING, "model_class_overrides": _NOTHING,
        "quantization_config": _NOTHING, "allow_deprecated_quantization": _SWITCH,
        "model_loader_extra_config": _NOTHING, "ignore_patterns": (ANY,),
        "skip_tokenizer_init": _OFF, "tokenizer_pool_size": (0,), "tokenizer_pool_type": (ANY,),
        "rope_scaling": _NOTHING, "rope_theta": _NOTHING, "additional_config": _NOTHING,
        "disable_sliding_window": _OFF, "weight_transfer_config": _NOTHING, "tokens_only": _OFF,
    },
    "HF_TOKEN, or what `hf auth login` has stored, is sent": {"hf_token": _SWITCH},
    "blocks are identified by a 128-bit hash of all that they depend on": {
        "prefix_caching_hash_algo": (ANY,), "prefix_match_unit": _NOTHING,
        "prefix_cache_retention_interval": (0,),
    },
    "kv_cache_memory_bytes says how large the pool is": {
        "num_gpu_blocks_override": _NOTHING, "kv_cache_dtype_skip_layers": _NOTHING,
    },
    "adapters are in PEFT's format": {
        "fully_sharded_loras": _OFF, "lora_target_modules": _NOTHING,
        "specialize_active_lora": _SWITCH, "enable_mixed_moe_lora_format": _OFF,
        "enable_moe_shared_loras": _OFF, "max_lora_cls_labels": (ANY,),
        "lora_extra_vocab_size": (0, 256), "long_lora_scaling_factors": _NOTHING,
        "enable_lora_bias": _OFF, "enable_prompt_adapter": _OFF, "max_prompt_adapters": (ANY,),
        "max_prompt_adapter_token": (ANY,), "qlora_adapter_name_or_path": _NOTHING,
    },
    "structured outputs use llguidance": {
        "structured_outputs_config": _NOTHING,
        "guided_decoding_backend": ("auto", "guidance", "llguidance"),
        "guided_decoding_disable_fallback": _SWITCH,
        "guided_decoding_disable_any_whitespace": _OFF,
        "guided_decoding_disable_additional_properties": (True,),
        "reasoning_parser_plugin": _NOTHING, "reasoning_config": _NOTHING,
        "logits_processor_pattern": _NOTHING, "logits_processors": _NOTHING,
    },
    "log-probabilities are those before temperature": {"logprobs_mode": ("raw_logprobs",)},
    "speculative_config says how to draft": {
        "spec_method": _NOTHING, "spec_model": _NOTHING, "spec_tokens": _NOTHING,
        "speculative_model": _NOTHING, "num_speculative_tokens": _NOTHING,
    },
    "Quire does not have it": {
        "enable_return_routed_experts": _OFF, "return_sampling_mask": _OFF,
        "enable_trace_replay": _OFF, "watermark_config": _NOTHING,
        "override_neuron_config": _NOTHING,
    },
}  # fmt: skip
RARE = tuple(
    Neutral(name, why, values) for why, named in _RARE.items() for name, values in named.items()
)
"""All others of vLLM's ``LLM`` and ``EngineArgs``."""

_OF_A_SERVER = "it is a setting of the server"
_IN_PYTHON = (
    Neutral("served_model_name", _OF_A_SERVER, (ANY,)),
    Neutral("stream_interval", _OF_A_SERVER, (ANY,)),
    Neutral("shutdown_timeout", _OF_A_SERVER, (ANY,)),
    Neutral("reasoning_parser", _OF_A_SERVER, _NOTHING),
    Neutral("otlp_traces_endpoint", _OF_A_SERVER, _NOTHING),
    Neutral("max_logprobs", "a request may ask for 100", tuple(range(101))),
    Neutral("log_level", "the program configures its own logging", (ANY,)),
)
_DEFAULTS: Mapping[str, object] = {
    **dict.fromkeys(("block_size", "max_num_batched_tokens", "max_num_seqs", "seed")),
    "distributed_timeout_seconds": None,
    "max_model_len": -1,
}
"""vLLM's defaults of options that have another default here."""

_BY_NAME = {one.name: one for one in (*COMMON, *RARE, *_IN_PYTHON)}


def without_neutral(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a Python program without those that change nothing.

    ConfigError for a value of theirs that would change something.
    """
    left = {}
    for name, value in options.items():
        neutral = _BY_NAME.get(name)
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            continue
        if neutral is None:
            left[name] = value
        elif not neutral.takes(value):
            raise ConfigError(neutral.refusal(name, shown(value)))
        elif value is not None:
            logger.debug("%s changes nothing: %s", name, neutral.why)
    return left
