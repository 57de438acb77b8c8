"""Where an engine is put together from its parts, and its memory is divided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from quire.config import EngineConfig
from quire.engine import Engine, Intake, load_tokenizer
from quire.errors import ConfigError, ModelError, RequestError
from quire.execution.executor import ModelExecutor
from quire.execution.kv_cache import KVCache, bytes_per_token
from quire.execution.measure import measure_recovery
from quire.execution.memory_budget import free_memory, pool_blocks
from quire.kernels.dispatch import attention_backend
from quire.memory import ContiguousAllocator, KVAllocator, PagedAllocator, Reservation
from quire.model import Model, load_model, resolve_model, sampling_defaults
from quire.scheduling import (
    Preemption,
    PreemptionMode,
    RecoveryCosts,
    SamplingParams,
    Scheduler,
    SchedulingPolicy,
)

DEMO_MODEL = Path(__file__).parent / "demo"
DEMO_NAME = "quire-demo"

_TYPICAL_TOKENS = (161, 338)  # mean prompt and output of ShareGPT chats (PagedAttention, fig. 11)


@dataclass(frozen=True)
class Capacity:
    """What was loaded and what the pool holds."""

    model_name: str
    dtype: str
    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_model_len: int
    prefix_caching: bool
    num_host_blocks: int

    def describe(self) -> str:
        """One paragraph for the person who starts the engine."""
        tokens = self.num_blocks * self.block_size
        typical = min(sum(_TYPICAL_TOKENS), self.max_model_len)
        full, usual = (
            self.num_blocks // math.ceil(length / self.block_size)
            for length in (self.max_model_len, typical)
        )
        swap = ""
        if self.num_host_blocks:
            swap = f" {self.num_host_blocks:,} more blocks of swap space are on disk."
        return (
            f"{self.model_name} in {self.dtype}: {_size(self.weight_bytes)} of weights, "
            f"{_size(self.kv_bytes_per_token)} of KV cache a token. The KV pool is "
            f"{_size(tokens * self.kv_bytes_per_token)}: {self.num_blocks:,} blocks of "
            f"{self.block_size}, {tokens:,} tokens. That holds {full:,} sequences of the full "
            f"{self.max_model_len:,} tokens, or {usual:,} typical chats of {typical} "
            f"({_TYPICAL_TOKENS[0]} in, {_TYPICAL_TOKENS[1]} out). "
            f"Prefix caching is {'on' if self.prefix_caching else 'off'}.{swap}"
        )


def build_engine(config: EngineConfig) -> tuple[Engine, Capacity]:
    """Load the model and give it a scheduler, a KV pool and a tokenizer."""
    directory = DEMO_MODEL if config.model is None else resolve_model(config.model, config.revision)
    model = load_model(directory, config.dtype, config.max_model_len)
    template = _read_template(config.chat_template)
    tokenizer_directory = directory if config.tokenizer is None else resolve_model(config.tokenizer)
    tokenizer = load_tokenizer(tokenizer_directory, template)
    capacity = _plan_capacity(config, model)
    attention = attention_backend()
    kv_cache = KVCache(
        model.kv_shapes,
        capacity.num_blocks,
        config.block_size,
        model.dtype,
        attention,
        capacity.num_host_blocks,
        config.swap_path,
    )
    executor = ModelExecutor(model, kv_cache, attention)
    allocator = _allocator(config, capacity)
    costs = RecoveryCosts()
    if kv_cache.swap_file is not None and config.preemption_mode == "auto":
        costs = measure_recovery(
            executor, kv_cache.swap_file, capacity.num_blocks, config.block_size
        )
    scheduler = Scheduler(
        allocator,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=capacity.prefix_caching,
        policy=SchedulingPolicy(config.scheduling_policy),
        preemption=Preemption(allocator, PreemptionMode(config.preemption_mode), costs),
    )
    intake = Intake(
        tokenizer,
        vocab_size=model.vocab_size,
        max_model_len=capacity.max_model_len,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
        sampling_defaults=_sampling_defaults(config, directory),
    )
    block_bytes = capacity.kv_bytes_per_token * config.block_size
    return Engine(scheduler, executor, intake, block_bytes=block_bytes), capacity


def _allocator(config: EngineConfig, capacity: Capacity) -> KVAllocator:
    blocks, host_blocks = capacity.num_blocks, capacity.num_host_blocks
    if config.kv_allocator == "paged":
        return PagedAllocator(blocks, config.block_size, host_blocks)
    return ContiguousAllocator(
        blocks,
        config.block_size,
        Reservation(config.kv_allocator),
        capacity.max_model_len,
        host_blocks,
    )


def _plan_capacity(config: EngineConfig, model: Model) -> Capacity:
    """Decide the pool's size; every limit is checked here, before memory is taken."""
    prefix_caching = config.enable_prefix_caching
    if model.kv_depends_on_prompt_length:
        if prefix_caching:
            raise ConfigError(
                "enable_prefix_caching: this model's rotary scaling depends on the length of the "
                "prompt, so its KV blocks cannot be reused; leave the option out"
            )
        prefix_caching = False
    if config.kv_allocator != "paged":
        if prefix_caching:
            raise ConfigError('enable_prefix_caching needs kv_allocator "paged"')
        prefix_caching = False
    per_token = bytes_per_token(model.kv_shapes, model.dtype)
    full_length = math.ceil(model.max_positions / config.block_size)
    num_blocks = pool_blocks(
        per_token * config.block_size,
        full_length * config.max_num_seqs,
        config.kv_cache_memory_bytes,
        free_memory(),
    )
    max_model_len = model.max_positions
    if num_blocks < full_length:
        fits = num_blocks * config.block_size
        if config.max_model_len is not None or not fits:
            needed = full_length * config.block_size * per_token
            raise ConfigError(
                f"max_model_len {max_model_len} needs a KV pool of {_size(needed)}; there is room "
                f"for {fits} tokens: lower max_model_len or raise kv_cache_memory_bytes"
            )
        max_model_len = fits
    return Capacity(
        model_name=DEMO_NAME if config.model is None else config.model,
        dtype=str(model.dtype).removeprefix("torch."),
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=per_token,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching is not False,
        num_host_blocks=_host_blocks(config.swap_space, per_token * config.block_size),
    )


def _host_blocks(swap_space: float, block_bytes: int) -> int:
    blocks = int(swap_space * 2**30) // block_bytes
    if swap_space and not blocks:
        raise ConfigError(f"swap_space must hold at least one block, {block_bytes:,} bytes")
    return blocks


def _sampling_defaults(config: EngineConfig, directory: Path) -> dict[str, float | int]:
    if config.generation_config == "none":
        return {}
    defaults = sampling_defaults(directory)
    try:
        SamplingParams(**defaults)  # type: ignore[arg-type]
    except RequestError as error:
        raise ModelError(f"{directory}/generation_config.json: {error}") from error
    return defaults


def _read_template(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template cannot be read: {error}") from error


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"
