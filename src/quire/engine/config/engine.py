"""The settings of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quire.blocks.events.config import KVEventsConfig, check_kv_events
from quire.blocks.store.config import STORE_SIZE, check_store
from quire.blocks.transfer.config import KVTransferConfig, check_transfer
from quire.capabilities.adapters.config import MOST_ADAPTERS, LoraModule
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import ConfigError
from quire.core.settings import (
    check_count,
    check_known,
    check_number,
    check_quantization,
    parse_bytes,
    parse_object,
    setting,
)
from quire.engine.config.device import check_device
from quire.engine.config.model_options import check_pooler, check_window, checked_generation_config
from quire.engine.config.neutral import without_neutral
from quire.engine.config.parallel import check_parallel


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and in how much memory. ``help`` in a field's metadata says what it does."""

    model: str | None = setting(
        None,
        "directory of the model, its Hugging Face name, or a GGUF file: a path, or the name and "
        "which file, as NAME:Q4_K_M (default: the small demonstration model inside the package)",
    )
    revision: str | None = setting(None, "branch, tag or commit of a Hugging Face model")
    tokenizer: str | None = setting(
        None, "directory or Hugging Face name of the tokenizer (default: the model's own)"
    )
    download_dir: str | None = setting(
        None, "directory for what is downloaded from Hugging Face (default: its own cache)"
    )
    hf_overrides: Mapping[str, Any] | None = setting(
        None, "JSON object over the fields of the model's config.json"
    )
    chat_template: str | None = setting(
        None, "file with a Jinja chat template to use in place of the model's, or the template"
    )
    generation_config: str = setting(
        "auto",
        "what sampling parameters are that a request leaves out: auto, as the model's "
        "generation_config.json says; none (or vllm), as OpenAI's API does; or another directory "
        "with such a file",
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None, 'JSON object over these sampling parameters: {"temperature": 0.5}'
    )
    device: str = setting("auto", "what computes: auto (a GPU, if one can be used), cpu or cuda")
    cpu_isa: str = setting(
        "auto",
        "instructions that the kernels in main memory use: auto, the best that this machine has; "
        "or amx, avx512_bf16, avx512, avx2 or portable (on ARM: neon_i8mm, neon_dot or neon), "
        "which is refused where it cannot run",
    )
    dtype: str = setting(
        "auto", "of weights and activations: auto (the checkpoint's), float32, bfloat16 or float16"
    )
    kv_cache_dtype: str = setting(
        "auto",
        "of the KV cache: auto (the model's dtype), float32, bfloat16, float16, or int8 or, on a "
        "GPU, fp8 (e4m3) with a scale for each key and value",
    )
    quantization: str | None = setting(
        None,
        "round weights as they are loaded: int8; int4, by groups; or w8a8 or w4a8, which multiply "
        "them by activations that are rounded to int8 as well (default: as they are stored, in "
        "checkpoints that others have rounded too)",
    )
    experts_path: str | None = setting(
        None,
        "directory for a file with a mixture's experts, which the system reads as they are chosen "
        "and keeps in the memory that is left: for mixtures that do not fit. On a disk; the file "
        "has no name and ends with the server (default: experts are in memory)",
    )
    pooler_config: Mapping[str, Any] | None = setting(
        None,
        "JSON object: how prompts become embeddings. pooling_type is LAST, MEAN, CLS or MAX; "
        "normalize, true or false; dimensions, how long vectors are (default: as the model's "
        "modules.json says, or else LAST, of an encoder MEAN, normalized)",
    )
    max_model_len: int | None = setting(
        None,
        "longest prompt plus output, in tokens (default: what model and KV pool allow; with a "
        "window, no limit)",
    )
    window: int | None = setting(
        None,
        "tokens that each token sees, itself included: a sequence may then go on for ever, in a "
        "fixed number of KV blocks (default: as the model says)",
    )
    attention_sinks: int = setting(
        0, "first tokens of a sequence that its tokens see beside the window (StreamingLLM)"
    )
    block_size: int = setting(16, "tokens in a KV block; on CPUs multiples of 16 are fastest")
    kv_cache_memory_bytes: int | None = setting(
        None,
        "size of the KV pool in bytes; 512MiB, 4G and the like are understood (default: half of "
        "the free memory, or what max_num_seqs full-length sequences need, if that is less; on a "
        "GPU, what gpu_memory_utilization leaves)",
    )
    gpu_memory_utilization: float = setting(
        0.9, "share of a GPU's memory that weights, KV pool and computing may take together"
    )
    warm_up: bool | None = setting(
        None,
        "touch the KV pool's memory at the start, so that no prompt waits for the system to map "
        "it; what is not touched is not taken before it is used (default: where it serves)",
    )
    enforce_eager: bool = setting(
        False, "launch every GPU kernel by itself, where decode steps could be replayed as graphs"
    )
    async_scheduling: bool | None = setting(
        None,
        "plan and launch a step while the GPU computes the one before, wherever that does not "
        "depend on what is being computed; texts are the same (default: on, on a GPU)",
    )
    speculative_config: Mapping[str, Any] | None = setting(
        None,
        "JSON object: guess tokens, and verify several in one step; texts stay the same. method is "
        "auto, ngram, suffix or draft; num_speculative_tokens is the most for a sequence in one "
        "step, 1 to 16; model is a smaller one that guesses. auto is recommended, and not the "
        "default before it costs no batch anything on more kinds of machine (default: none)",
    )
    max_num_seqs: int = setting(128, "most sequences that run at once")
    max_num_batched_tokens: int = setting(
        2048, "most tokens computed in one step; longer prompts are prefilled in chunks"
    )
    enable_lora: bool = setting(
        False, "serve adapters (LoRA) beside the model: requests name them as they name models"
    )
    lora_modules: Sequence[str] = setting(
        (), 'adapters to serve, each as NAME=DIRECTORY, or {"name": ..., "path": ..., '
        '"base_model_name": ...}; may be given several times',
    )  # fmt: skip
    max_loras: int = setting(
        1, "most different adapters that run at once; requests for more of them wait"
    )
    max_lora_rank: int = setting(16, "largest rank that an adapter may have")
    max_cpu_loras: int | None = setting(
        None, "adapters that are kept in memory; others are read again when they are asked for "
        "(default: max_loras)",
    )  # fmt: skip
    max_num_sessions: int = setting(
        128, "most streaming sessions that are open at once, busy or idle"
    )
    max_sessions_per_client: int | None = setting(
        None, "most of them that one client of a server may have (default: half of them)"
    )
    session_timeout: float = setting(
        1800.0, "seconds after which a session that nobody uses is closed; 0: never"
    )
    enable_prefix_caching: bool | None = setting(
        None, "reuse the KV blocks of equal prompt beginnings (default: on, where the model can)"
    )
    kv_events_config: Mapping[str, Any] | None = setting(
        None,
        "JSON object: tell routers over ZeroMQ which blocks the prefix cache holds, as vLLM does: "
        "enable_kv_cache_events, publisher, endpoint, replay_endpoint, topic ... (default: no)",
    )
    max_num_waiting: int = setting(
        2048,
        "most requests that a server lets wait to be let in, each prompt counting as one; more are "
        "told to come again later (429)",
    )
    max_queue_time: float | None = setting(
        None,
        "seconds after which a request that has not been let in ends with an error (503) "
        "(default: never)",
    )
    scheduling_policy: str = setting(
        "fcfs",
        "who goes first: fcfs; priority (by the requests' priority, then arrival); or fair (the "
        "client that has been served the fewest tokens)",
    )
    preemption_mode: str = setting(
        "auto", "what happens to who must give way: swap, recompute, or auto, the cheaper one"
    )
    swap_space: float = setting(0.0, "GiB of host blocks to swap to; 0 leaves recomputing")
    swap_path: str | None = setting(
        None, "directory for the swap file of a CPU engine (default: the system's for temporaries)"
    )
    kv_store: str | None = setting(
        None,
        "directory for KV blocks that outlive the pool and the process: prompts whose beginnings "
        "are known there are fetched where that takes less time than computing them. Engines on "
        "one machine may share it (default: none)",
    )
    kv_store_size: float = setting(
        STORE_SIZE, "GiB that all blocks in kv_store may take; the least recently used go first"
    )
    kv_offloading_size: float | None = setting(
        None,
        "GiB of main memory for KV blocks that leave the pool, fetched back where that takes less "
        "time than computing them; the least recently used go first. More than the pool, whose "
        "blocks lie there too. On a CPU, whose pool is main memory itself, a larger pool does the "
        "same for less; not for GPUs yet (default: none)",
    )
    role: str = setting(
        "both",
        "prefill: compute prompts, and hand their KV blocks to other engines; decode: fetch the "
        "blocks of prompts from those, as requests say; both: neither",
    )
    kv_transfer_config: Mapping[str, Any] | None = setting(
        None, "JSON object, of a role: kv_ip, kv_port, kv_buffer_size, timeout (default: {})"
    )
    threads: int | None = setting(
        None,
        "threads that compute (default: the cores that this process may use, its cgroup's quota "
        "included)",
    )
    record_trace: str | None = setting(
        None,
        "file for a trace of all requests, to be simulated later: times, lengths and keyed hashes "
        "of blocks, no text",
    )
    record_steps: str | None = setting(
        None, "file for a CSV of all steps: what each had to do, and its seconds"
    )
    seed: int = setting(0, "decides the seeds of requests that bring none")
    tensor_parallel_size: int = setting(
        1, "processes (ranks) that hold a part of the model each and compute every step together"
    )
    distributed_executor_backend: str | None = setting(
        None,
        "how ranks are started: mp, as processes of this machine, or of nnodes machines; ray, as "
        "actors of a Ray cluster (default: mp)",
    )
    nnodes: int = setting(1, "machines that the ranks are on, the same number on each")
    node_rank: int = setting(
        0, "which of them this one is; 0 serves, the others run quire serve --headless"
    )
    master_addr: str = setting("127.0.0.1", "address of machine 0, where the others find it")
    master_port: int = setting(29501, "port of machine 0 where it waits for the others")
    distributed_timeout_seconds: float = setting(
        60.0, "seconds that a rank may take to answer before the engine ends with an error"
    )

    def __post_init__(self) -> None:
        for name, most in _COUNTS.items():
            check_count(name, getattr(self, name), high=most)
        for name in _OBJECTS:
            object.__setattr__(self, name, parse_object(name, getattr(self, name)) or None)
        check_pooler(self.pooler_config or {})
        source = checked_generation_config(self.generation_config)
        object.__setattr__(self, "generation_config", source)
        check_count("threads", self.threads, 1, most_threads())
        check_quantization("quantization", self.quantization)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                names = ", ".join(filter(None, allowed))
                raise ConfigError(f"{name} must be one of {names}; got {getattr(self, name)!r}")
        space = self.swap_space
        check_number("swap_space", space, 0, 2**20, "GiB")
        if self.preemption_mode == "swap" and not space:
            raise ConfigError('preemption_mode "swap" needs a swap_space above 0')
        if self.preemption_mode == "recompute" and space:
            raise ConfigError('swap_space does nothing with preemption_mode "recompute"')
        if self.swap_path is not None and not space:
            raise ConfigError("swap_path needs a swap_space above 0")
        check_store(self)
        self._check_sessions()
        check_number("max_queue_time", self.max_queue_time, 0.001, 2**31, "seconds")
        check_window(self.window, self.attention_sinks, self.block_size)
        check_device(self)
        self._check_speculation()
        self._check_adapters()
        check_kv_events(self)
        check_parallel(self)
        check_transfer(self)
        size = self.kv_cache_memory_bytes
        if size is not None:
            object.__setattr__(self, "kv_cache_memory_bytes", parse_bytes(size))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"seed must be an integer, got {self.seed!r}")

    def _check_sessions(self) -> None:
        check_count(
            "max_sessions_per_client", self.max_sessions_per_client, 1, self.max_num_sessions
        )
        if self.session_timeout is None:
            raise ConfigError("session_timeout must be a number of seconds; 0 is never")
        check_number("session_timeout", self.session_timeout, 0, 2**31, "seconds")

    def _check_speculation(self) -> None:
        speculation = self.speculation
        if speculation is None or not speculation.has_draft_model:
            return
        if speculation.model is None and self.model is not None:
            raise ConfigError(
                'speculative_config: method "draft" needs a model: {"method": "draft", "model": '
                "a directory or Hugging Face name}"
            )
        if self.device == "cuda":
            raise ConfigError(NO_DRAFT_MODEL_ON_GPU)

    def _check_adapters(self) -> None:
        object.__setattr__(self, "lora_modules", tuple(self.lora_modules))
        if not self.enable_lora:
            for name in ("lora_modules", "max_loras", "max_lora_rank", "max_cpu_loras"):
                if getattr(self, name) != getattr(EngineConfig, name):
                    raise ConfigError(f"{name} does nothing without enable_lora")
            return
        check_count("max_loras", self.max_loras, 1, MOST_ADAPTERS)
        check_count("max_lora_rank", self.max_lora_rank, 1, 512)
        check_count("max_cpu_loras", self.max_cpu_loras, self.max_loras, MOST_ADAPTERS)
        names = [module.name for module in self.adapters]
        if len(set(names)) < len(names):
            raise ConfigError(f"lora_modules: two adapters are called alike: {', '.join(names)}")
        if self.device == "cuda":
            raise ConfigError(NO_ADAPTERS_ON_GPU)

    @cached_property
    def kv_events(self) -> KVEventsConfig | None:
        """``kv_events_config``, checked; None: nobody is told."""
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


NO_DRAFT_MODEL_ON_GPU = (
    "speculative_config: a draft model computes on CPUs only: choose device cpu, or method suffix"
)

_OBJECTS = (
    "hf_overrides",
    "override_generation_config",
    "speculative_config",
    "pooler_config",
    "kv_events_config",
    "kv_transfer_config",
)
NO_ADAPTERS_ON_GPU = "enable_lora: adapters compute on CPUs only: choose device cpu"

_COUNTS = {
    "block_size": None,
    "max_num_seqs": 2**24,  # a batch has an entry for each
    "max_num_batched_tokens": None,
    "max_model_len": None,
    "max_num_sessions": None,
    "max_num_waiting": None,
    "window": None,
}
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
    "kv_cache_dtype": ("auto", "float32", "bfloat16", "float16", "int8", "fp8"),
    "preemption_mode": ("auto", "swap", "recompute"),
    "distributed_executor_backend": (None, "mp", "ray", "uni"),
}
