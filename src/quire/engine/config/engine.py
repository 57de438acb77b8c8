"""The settings of an engine, in vLLM's names: a frozen value, of which flags are made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from quire.blocks.events.config import KVEventsConfig
from quire.blocks.transfer.config import ROLES, KVTransferConfig, check_transfer
from quire.capabilities.adapters.config import MOST_ADAPTERS, LoraModule
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import ConfigError
from quire.engine.config.neutral import without_neutral
from quire.settings import (
    QUANTIZATIONS,
    check_count,
    check_known,
    check_one_of,
    check_quantization,
    check_settings,
    setting,
)

_MOST_RANKS = 64
_MOST_SEQS = 2**24  # a batch has an entry for each
_MOST_SECONDS = 2**31
_POOLING = ("LAST", "MEAN", "CLS", "MAX")
_STORE_SIZE = 16.0  # GiB

_model = partial(setting, section="model")
_device = partial(setting, section="device")
_memory = partial(setting, section="memory")
_scheduling = partial(setting, section="scheduling")
_speculation = partial(setting, section="speculation")
_adapters = partial(setting, section="adapters")
_sessions = partial(setting, section="streaming sessions")
_parallel = partial(setting, section="parallelism")
_outside = partial(setting, section="blocks outside the pool")
_observing = partial(setting, section="observing")


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and in how much memory. A field's metadata says what it does."""

    # -- model -----------------------------------------------------------------------------

    model: str | None = _model(
        None,
        "directory of the model, its Hugging Face name, or a GGUF file (a path, or NAME:Q4_K_M "
        "for one of a repository's files) (default: the small demonstration model inside the "
        "package)",
        value="MODEL",
    )
    revision: str | None = _model(
        None, "branch, tag or commit of a Hugging Face model", value="REVISION"
    )
    tokenizer: str | None = _model(
        None,
        "directory or Hugging Face name of the tokenizer (default: the model's own)",
        value="NAME",
    )
    download_dir: str | None = _model(
        None,
        "directory for downloads from Hugging Face (default: Hugging Face's cache)",
        value="DIRECTORY",
    )
    dtype: str = _model(
        "auto",
        "type of weights and activations; auto: the checkpoint's",
        choices=("auto", "float32", "float", "bfloat16", "float16", "half"),
    )
    quantization: str | None = _model(
        None,
        "round weights while loading, by groups of inputs: int8, int4; w8a8 and w4a8 round "
        "activations to int8 too, also where the checkpoint has rounded weights (default: as the "
        "checkpoint stores them)",
        choices=QUANTIZATIONS,
        common=True,
    )
    max_model_len: int | None = _model(
        None,
        "longest prompt plus output (default: what the model and the KV pool allow; no limit with "
        "a window)",
        low=1,
        unit="tokens",
        common=True,
    )
    window: int | None = _model(
        None,
        "attend to this many latest tokens only: a sequence can then go on for ever, in a fixed "
        "number of KV blocks (default: as the model says)",
        low=1,
        unit="tokens",
    )
    attention_sinks: int = _model(
        0,
        "first tokens of a sequence that are attended to beside the window (StreamingLLM)",
        low=0,
        unit="tokens",
    )
    experts_path: str | None = _model(
        None,
        "directory on a disk for a file with a mixture's experts, for mixtures that do not fit in "
        "memory: the system reads experts as they are chosen, and caches them in free memory. The "
        "file has no name and is gone when the server ends (default: experts are in memory)",
        value="DIRECTORY",
    )
    hf_overrides: Mapping[str, Any] | None = _model(
        None, "fields that replace those of the model's config.json"
    )
    chat_template: str | None = _model(
        None,
        "Jinja chat template in place of the model's: a file, or the template itself",
        value="TEMPLATE",
    )
    generation_config: str = _model(
        "auto",
        "source of the sampling parameters that a request leaves out: auto, the model's "
        "generation_config.json; none (or vllm), OpenAI's defaults; or a directory with such a "
        "file",
        value="{auto,none,DIRECTORY}",
    )
    override_generation_config: Mapping[str, Any] | None = _model(
        None, 'sampling parameters that replace those: {"temperature": 0.5}'
    )
    additional_properties: bool = _model(
        False,
        "let objects of JSON have properties that their schema does not name, where it leaves "
        "additionalProperties out, as JSON Schema has it; models invent them",
    )
    pooler_config: Mapping[str, Any] | None = _model(
        None,
        f"how prompts become embeddings: pooling_type ({', '.join(_POOLING)}), normalize (true or "
        "false), dimensions (length of the vectors) (default: as the model's modules.json says; "
        "without one LAST, or MEAN for an encoder, normalized)",
    )
    seed: int = _model(0, "seed from which requests without one get theirs", value="N")

    # -- device ----------------------------------------------------------------------------

    device: str = _device(
        "auto",
        "where to compute; auto: on a GPU if there is a usable one",
        choices=("auto", "cpu", "cuda"),
        common=True,
    )
    threads: int | None = _device(
        None,
        "threads that compute (default: the cores that this process may use, within its cgroup's "
        "quota)",
        low=1,
        value="N",
        common=True,
    )
    cpu_isa: str = _device(
        "auto",
        "instruction set of the CPU kernels: auto, the best that this machine can run; amx, "
        "avx512_bf16, avx512, avx2 or portable; on ARM neon_i8mm, neon_dot or neon. One that "
        "cannot run here is an error",
        value="ISA",
    )
    enforce_eager: bool = _device(
        False, "launch every GPU kernel by itself, instead of replaying decode steps as CUDA graphs"
    )
    async_scheduling: bool | None = _device(
        None,
        "plan and launch a step while the GPU still computes the one before, where the plan does "
        "not depend on its result; outputs are the same (default: on, on a GPU)",
    )

    # -- memory ----------------------------------------------------------------------------

    kv_cache_memory_bytes: int | None = _memory(
        None,
        "size of the KV pool, such as 512MiB or 4G (default: half of the free memory, or what "
        "max_num_seqs sequences of full length need, if that is less; on a GPU what "
        "gpu_memory_utilization leaves)",
        unit="bytes",
        common=True,
    )
    gpu_memory_utilization: float = _memory(
        0.9,
        "share of a GPU's memory that weights, KV pool and computing may take together",
        value="SHARE",
    )
    kv_cache_dtype: str = _memory(
        "auto",
        "type of the KV cache; auto: the model's. int8, int4 (CPUs only) and fp8 (e4m3, GPUs only) "
        "keep a scale for each key and value",
        choices=("auto", "float32", "bfloat16", "float16", "int8", "int4", "fp8"),
    )
    block_size: int = _memory(
        16, "size of a KV block; multiples of 16 are fastest on CPUs", low=1, unit="tokens"
    )
    enable_prefix_caching: bool | None = _memory(
        None, "reuse KV blocks of equal prompt prefixes (default: on, if the model can)"
    )
    warm_up: bool | None = _memory(
        None,
        "touch the KV pool's memory at the start, so that no prompt waits for the system to map "
        "it; without, memory is taken when it is first used (default: on in a server)",
    )
    preemption_mode: str = _memory(
        "auto",
        "what happens to the KV blocks of a preempted sequence; auto: the cheaper of the two",
        choices=("auto", "swap", "recompute"),
    )
    swap_space: float = _memory(
        0.0,
        "host memory for the blocks of preempted sequences; 0: they are recomputed",
        low=0,
        high=2**20,
        unit="GiB",
    )
    swap_path: str | None = _memory(
        None,
        "directory for the swap file of a CPU engine (default: the system's directory for "
        "temporary files)",
        value="DIRECTORY",
    )

    # -- scheduling ------------------------------------------------------------------------

    max_num_seqs: int = _scheduling(
        128, "most sequences that run at once", low=1, high=_MOST_SEQS, value="N", common=True
    )
    max_num_batched_tokens: int = _scheduling(
        2048,
        "most tokens that one step computes; longer prompts are prefilled in chunks",
        low=1,
        unit="tokens",
    )
    scheduling_policy: str = _scheduling(
        "fcfs",
        "order of waiting requests: fcfs, by arrival; priority, by the requests' priority, then "
        "arrival; fair, the client that has been served the fewest tokens",
        choices=("fcfs", "priority", "fair"),
    )
    max_num_waiting: int = _scheduling(
        2048,
        "most requests that may wait in a server's queue, each prompt counting as one; further "
        "ones are refused with status 429",
        low=1,
        value="N",
    )
    max_queue_time: float | None = _scheduling(
        None,
        "longest time that a request may wait for admission; then it ends with status 503 "
        "(default: no limit)",
        low=0.001,
        high=_MOST_SECONDS,
        unit="seconds",
    )

    # -- speculation -----------------------------------------------------------------------

    speculative_config: Mapping[str, Any] | None = _speculation(
        None,
        'speculative decoding, with the same outputs: {"method": "auto"} is recommended. method: '
        "auto, ngram, suffix or draft; model: a smaller model that drafts; num_speculative_tokens: "
        "most draft tokens of a sequence in a step, 1 to 16 (default: none)",
        common=True,
    )

    # -- adapters --------------------------------------------------------------------------

    enable_lora: bool = _adapters(
        False, "serve LoRA adapters beside the model: requests name one as their model"
    )
    lora_modules: Sequence[str] = _adapters(
        (),
        "adapters to serve, each as NAME=DIRECTORY or as a JSON object "
        '{"name": …, "path": …, "base_model_name": …}; may be repeated',
        value="NAME=DIRECTORY",
    )
    max_loras: int = _adapters(
        1, "most adapters that run at once; requests for further ones wait", value="N"
    )
    max_lora_rank: int = _adapters(16, "largest rank of an adapter", value="N")
    max_cpu_loras: int | None = _adapters(
        None,
        "adapters that are kept in memory; others are read again when a request names them "
        "(default: max_loras)",
        value="N",
    )

    # -- streaming sessions ----------------------------------------------------------------

    max_num_sessions: int = _sessions(
        128, "most streaming sessions that are open at once, busy or idle", low=1, value="N"
    )
    max_sessions_per_client: int | None = _sessions(
        None, "most sessions of one client (default: half of max_num_sessions)", value="N"
    )
    session_timeout: float = _sessions(
        1800.0,
        "close a session that was idle for this long; 0: never",
        low=0,
        high=_MOST_SECONDS,
        unit="seconds",
    )

    # -- parallelism -----------------------------------------------------------------------

    tensor_parallel_size: int = _parallel(
        1,
        "ranks: processes that hold a part of every layer each, and compute every step together",
        low=1,
        high=_MOST_RANKS,
        value="N",
    )
    distributed_executor_backend: str | None = _parallel(
        None,
        "how ranks are started: mp, as processes of this machine or of nnodes machines; ray, as "
        "actors of a Ray cluster; uni, none beside this process (default: mp)",
        choices=("mp", "ray", "uni"),
    )
    nnodes: int = _parallel(1, "machines with ranks, each with the same number", low=1, value="N")
    node_rank: int = _parallel(
        0,
        "number of this machine; 0 serves, the others run quire serve --headless",
        low=0,
        value="N",
    )
    master_addr: str = _parallel(
        "127.0.0.1", "address of machine 0, for the others to connect to", value="ADDRESS"
    )
    master_port: int = _parallel(
        29501, "port of machine 0 that the others connect to", low=1, high=65535, value="PORT"
    )
    distributed_timeout_seconds: float = _parallel(
        60.0,
        "longest time that a rank may take to answer before the engine ends with an error",
        low=1,
        high=86400,
        unit="seconds",
    )

    # -- blocks outside the pool -----------------------------------------------------------

    kv_store: str | None = _outside(
        None,
        "directory for KV blocks that survive eviction and restarts: cached prompt prefixes are "
        "fetched from there if that is faster than computing them. Engines on one machine may "
        "share it (default: none)",
        value="DIRECTORY",
    )
    kv_store_size: float = _outside(
        _STORE_SIZE,
        "most space that blocks in kv_store may take; the least recently used are evicted",
        low=2.0**-10,
        high=2**30,
        unit="GiB",
    )
    kv_offloading_size: float | None = _outside(
        None,
        "main memory for KV blocks that are evicted from the pool, fetched if that is faster than "
        "computing them. It must be larger than the pool, whose blocks are there too. On a CPU a "
        "larger pool does the same for less; not for GPUs yet (default: none)",
        low=2.0**-10,
        high=2**16,
        unit="GiB",
    )
    role: str = _outside(
        "both",
        "disaggregated prefill: prefill, compute prompts and send their KV blocks to other "
        "engines; decode, fetch the blocks of prompts from those, as requests say; both, neither "
        "of the two",
        choices=ROLES,
    )
    kv_transfer_config: Mapping[str, Any] | None = _outside(
        None,
        "how a role sends or fetches blocks: kv_ip, kv_port, kv_buffer_size, key_file, timeout",
    )
    kv_events_config: Mapping[str, Any] | None = _outside(
        None,
        "publish over ZeroMQ which blocks the prefix cache holds, as vLLM does, for routers: "
        "enable_kv_cache_events, publisher, endpoint, replay_endpoint, topic, … (default: none)",
    )

    # -- observing -------------------------------------------------------------------------

    record_trace: str | None = _observing(
        None,
        "write a trace of all requests, for quire simulate: times, lengths and keyed hashes of "
        "blocks, no text",
        value="FILE",
    )
    record_steps: str | None = _observing(
        None, "write a CSV of all steps: what each computed, and how long it took", value="FILE"
    )

    def __post_init__(self) -> None:
        check_quantization("quantization", self.quantization)  # its error says more
        check_count("threads", self.threads, 1, most_threads())
        check_settings(self)
        object.__setattr__(self, "lora_modules", tuple(self.lora_modules))
        if self.generation_config == "vllm":
            object.__setattr__(self, "generation_config", "none")
        _check_model(self)
        _check_device(self)
        _check_memory(self)
        _check_speculation(self)
        _check_adapters(self)
        check_count(
            "max_sessions_per_client", self.max_sessions_per_client, 1, self.max_num_sessions
        )
        _check_ranks(self)
        _check_blocks_outside(self)
        check_transfer(self)

    @cached_property
    def kv_events(self) -> KVEventsConfig | None:
        """``kv_events_config``, checked; None: no events are published."""
        config = KVEventsConfig.of(self.kv_events_config or {})
        return config if config.publishes else None

    @cached_property
    def transfer(self) -> KVTransferConfig:
        """``kv_transfer_config``, checked."""
        return KVTransferConfig.of(self.kv_transfer_config or {})

    @cached_property
    def adapters(self) -> tuple[LoraModule, ...]:
        """``lora_modules``, checked."""
        return tuple(map(LoraModule.parse, self.lora_modules))

    @cached_property
    def speculation(self) -> SpeculativeConfig | None:
        """``speculative_config``, checked."""
        given = self.speculative_config
        return None if given is None else SpeculativeConfig.of(given)

    @classmethod
    def create(cls, options: Mapping[str, Any]) -> EngineConfig:
        """A config from keyword options; an unknown one is an error that names its neighbour."""
        check_known(cls, chosen := without_neutral(options))
        return cls(**chosen)


def most_threads() -> int:
    """More than this many threads would only wait for each other; far more crash OpenMP."""
    return min(1024, 4 * (os.cpu_count() or 1))


# -- what settings need of each other ----------------------------------------------------------


def _check_model(config: EngineConfig) -> None:
    source = config.generation_config
    if source not in ("auto", "none") and not Path(source).is_dir():
        raise ConfigError(
            f"generation_config must be auto, none, vllm or a directory; got {source!r}"
        )
    _check_pooler(config.pooler_config or {})
    if config.window is None and config.attention_sinks:
        raise ConfigError("attention_sinks needs a window")
    if config.window is not None and config.window < config.block_size:
        raise ConfigError(
            f"window must be at least block_size, {config.block_size}; got {config.window}"
        )


def _check_pooler(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name == "pooling_type":
            check_one_of("pooler_config: pooling_type", value, _POOLING)
        elif name == "normalize":
            if not isinstance(value, bool):
                raise ConfigError(f"pooler_config: normalize must be true or false, got {value!r}")
        elif name == "dimensions":
            check_count("pooler_config: dimensions", value)
        else:
            raise ConfigError(
                f"pooler_config: unknown option {name}; known: pooling_type, normalize, dimensions"
            )


def _check_device(config: EngineConfig) -> None:
    """ConfigError if a setting does nothing on the device."""
    share = config.gpu_memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}")
    if config.device == "cpu":
        if config.kv_cache_dtype == "fp8":
            raise ConfigError('kv_cache_dtype "fp8" needs a GPU; "int8" takes as little memory')
        for name in ("gpu_memory_utilization", "enforce_eager", "async_scheduling"):
            value = getattr(config, name)
            if value and value != getattr(EngineConfig, name):
                raise ConfigError(f'{name} does nothing with device "cpu"')
    if config.device == "cuda":
        check_on_gpu(config)


def check_on_gpu(config: EngineConfig) -> None:
    """ConfigError for a setting that a GPU cannot have."""
    drafts = config.speculation is not None and config.speculation.has_draft_model
    ranks = config.tensor_parallel_size > 1
    store, offloads = config.kv_store is not None, config.kv_offloading_size is not None
    for given, why in (
        (config.kv_cache_dtype == "int4", 'kv_cache_dtype "int4" is for CPUs; on a GPU there are '
                                          '"int8" and "fp8"'),
        (config.cpu_isa != "auto", "cpu_isa does nothing on a GPU; leave it out"),
        (config.swap_path is not None, "swap_path does nothing on a GPU, from which blocks are "
                                       "swapped to main memory; leave it out"),
        (config.experts_path is not None, "experts_path: on a GPU, experts are in its memory; "
                                          "leave it out"),
        (drafts, "speculative_config: a draft model computes on CPUs only: choose device cpu, or "
                 "method suffix"),
        (config.enable_lora, "enable_lora needs device cpu: adapters compute on CPUs only"),
        (ranks, "tensor_parallel_size above 1 needs device cpu: ranks compute on CPUs only"),
        (store, "kv_store: blocks are stored on CPUs only: choose device cpu"),
        (offloads, "kv_offloading_size: blocks are stored on CPUs only: choose device cpu"),
        (config.role != "both", "role: blocks are handed over on CPUs only: choose device cpu"),
    ):  # fmt: skip
        if given:
            raise ConfigError(why)


def _check_memory(config: EngineConfig) -> None:
    space = config.swap_space
    if config.preemption_mode == "swap" and not space:
        raise ConfigError('preemption_mode "swap" needs a swap_space above 0')
    if config.preemption_mode == "recompute" and space:
        raise ConfigError('swap_space does nothing with preemption_mode "recompute"')
    if config.swap_path is not None and not space:
        raise ConfigError("swap_path needs a swap_space above 0")


def _check_speculation(config: EngineConfig) -> None:
    speculation = config.speculation
    if speculation is None or not speculation.has_draft_model:
        return
    if speculation.model is None and config.model is not None:
        raise ConfigError(
            'speculative_config: method "draft" needs a model: {"method": "draft", "model": '
            "a directory or Hugging Face name}"
        )


def _check_adapters(config: EngineConfig) -> None:
    if not config.enable_lora:
        for name in ("lora_modules", "max_loras", "max_lora_rank", "max_cpu_loras"):
            if getattr(config, name) != getattr(EngineConfig, name):
                raise ConfigError(f"{name} does nothing without enable_lora")
        return
    check_count("max_loras", config.max_loras, 1, MOST_ADAPTERS)
    check_count("max_lora_rank", config.max_lora_rank, 1, 512)
    check_count("max_cpu_loras", config.max_cpu_loras, config.max_loras, MOST_ADAPTERS)
    names = [module.name for module in config.adapters]
    if len(set(names)) < len(names):
        raise ConfigError(f"lora_modules: two adapters have the same name: {', '.join(names)}")


def _check_ranks(config: EngineConfig) -> None:
    size, nodes = config.tensor_parallel_size, config.nnodes
    backend = config.distributed_executor_backend
    check_count("nnodes", nodes, 1, size)
    check_count("node_rank", config.node_rank, 0, nodes - 1)
    if not config.master_addr:
        raise ConfigError("master_addr must be an address, got an empty text")
    if size % nodes:
        raise ConfigError(f"tensor_parallel_size {size} cannot be divided among {nodes} nnodes")
    if backend == "uni" and size > 1:
        raise ConfigError('distributed_executor_backend "uni" is for tensor_parallel_size 1')
    if backend == "ray" and size == 1:
        raise ConfigError(
            'distributed_executor_backend "ray" does nothing with tensor_parallel_size 1'
        )
    if backend == "ray" and nodes > 1:
        raise ConfigError("nnodes does nothing with ray, which finds machines itself")


def _check_blocks_outside(config: EngineConfig) -> None:
    if config.kv_store is None and config.kv_store_size != _STORE_SIZE:
        raise ConfigError("kv_store_size does nothing without kv_store")
    if config.kv_store is not None and not config.kv_store:
        raise ConfigError("kv_store must be a directory, got ''")
    asked = {
        "kv_store": config.kv_store,
        "kv_offloading_size": config.kv_offloading_size,
        "kv_events_config": config.kv_events,
    }
    for name, value in asked.items():
        if value is not None and config.enable_prefix_caching is False:
            why = "blocks are found by their content"
            raise ConfigError(f"{name} needs enable_prefix_caching: {why}")
