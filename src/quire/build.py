"""Where an engine is put together from its parts, and its memory is divided."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.config import EngineConfig
from quire.engine import Engine, Intake, RequestRecorder, load_tokenizer
from quire.errors import ConfigError, ModelError, RequestError
from quire.execution.device import choose_device
from quire.execution.kv_cache import bytes_per_token
from quire.execution.lanes import Lane, blocks_needed, blocks_of, divide, layers_by_window
from quire.execution.memory_budget import memory_or_refusal, pool_blocks
from quire.execution.placement import OnCPU, Placement, Room
from quire.files import read_text
from quire.kernels.dispatch import release_threads
from quire.memory import (
    ContiguousAllocator,
    KVAllocator,
    LayeredAllocator,
    PagedAllocator,
    Reservation,
    Window,
)
from quire.model import Model, Streaming, load_model, read_config, resolve_model, sampling_defaults
from quire.scheduling import (
    Preemption,
    PreemptionMode,
    RecoveryCosts,
    SamplingParams,
    Scheduler,
    SchedulingPolicy,
)
from quire.threads import usable_cores

DEMO_MODEL = Path(__file__).parent / "demo"
DEMO_NAME = "quire-demo"

_TYPICAL_TOKENS = (161, 338)  # mean prompt and output of ShareGPT chats (PagedAttention, fig. 11)


@dataclass(frozen=True)
class Capacity:
    """What was loaded and what the pool holds."""

    model_name: str
    dtype: str
    quantization: str | None  # of the weights, None: as the checkpoint has them
    weight_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int
    block_size: int
    lanes: tuple[Lane, ...]
    pool_bytes: int
    max_model_len: int | None  # None: a window lets sequences go on for ever
    prefix_caching: bool
    host_blocks: str  # where they are

    @property
    def num_blocks(self) -> int:
        """Blocks over all lanes."""
        return sum(lane.num_blocks for lane in self.lanes)

    @property
    def mean_block_bytes(self) -> int:
        """Bytes of a block, whose layers are those of its lane."""
        return self.kv_bytes_per_token * self.block_size // len(self.lanes)

    def describe(self) -> str:
        """One paragraph for the person who starts the engine."""
        tokens_in, tokens_out = _TYPICAL_TOKENS
        typical, chats = tokens_in + tokens_out, f" ({tokens_in} in, {tokens_out} out)"
        longest = "any length"
        if self.max_model_len is not None:
            longest = f"the full {self.max_model_len:,} tokens"
            if typical > self.max_model_len:
                typical, chats = self.max_model_len, ""
        full, usual = (
            min(lane.seqs_that_fit(length, self.block_size) for lane in self.lanes)
            for length in (self.max_model_len, typical)
        )
        return (
            f"{self.model_name} in {self.dtype}: {_size(self.weight_bytes)} of weights"
            f"{self._describe_rounding()}, {_size(self.kv_bytes_per_token)} of KV cache a token "
            f"({self.kv_dtype}). The KV pool is "
            f"{_size(self.pool_bytes)}: {self._describe_lanes()}. "
            f"That holds {full:,} sequences of {longest}, "
            f"or {usual:,} typical chats of {typical}{chats}. "
            f"Prefix caching is {'on' if self.prefix_caching else 'off'}.{self._describe_swap()}"
        )

    def _describe_rounding(self) -> str:
        return "" if self.quantization is None else f" rounded as {self.quantization}"

    def _describe_lanes(self) -> str:
        clauses, num_layers = [], sum(len(lane.layers) for lane in self.lanes)
        for lane in self.lanes:
            clause = (
                f"{lane.num_blocks:,} blocks of {self.block_size}, "
                f"{lane.num_blocks * self.block_size:,} tokens"
            )
            if lane.window is not None or len(self.lanes) > 1:
                clause += f", for {len(lane.layers)} of {num_layers} layers"
            if lane.window is not None:
                first = f"first {lane.window.sinks:,} and the " if lane.window.sinks else ""
                last = f"last {lane.window.tokens:,}"
                clause += f" (only the {first}{last} tokens of a sequence)"
            clauses.append(clause)
        return ", and ".join(clauses)

    def _describe_swap(self) -> str:
        blocks = sum(lane.num_host_blocks for lane in self.lanes)
        return f" {blocks:,} more blocks of swap space are {self.host_blocks}." if blocks else ""


@memory_or_refusal()
def build_engine(config: EngineConfig) -> tuple[Engine, Capacity]:
    """Load the model and give it a scheduler, a KV pool and a tokenizer."""
    # By default as many as torch would take (OMP_NUM_THREADS), but no more than can run at once.
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), usable_cores()))
    directory = resolve_model(config.model or DEMO_MODEL, config.revision)
    read_config(directory)  # first: without it, what a tokenizer lacks would not be the point
    tokenizer_directory = directory if config.tokenizer is None else resolve_model(config.tokenizer)
    tokenizer = load_tokenizer(tokenizer_directory, _read_template(config.chat_template))
    defaults = _sampling_defaults(config, directory)
    placement = _choose_placement(config)
    with placement.turn():
        model = _load_model(config, directory, placement)
        capacity = _plan_capacity(config, model, placement)
        executor = placement.executor(model, capacity.lanes, _kv_dtype(config, model))
    allocator = _allocator(config, capacity)
    costs = RecoveryCosts()
    if config.swap_space and config.preemption_mode == "auto":
        costs = placement.recovery_costs()
    scheduler = Scheduler(
        allocator,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=capacity.prefix_caching,
        policy=SchedulingPolicy(config.scheduling_policy),
        preemption=Preemption(allocator, PreemptionMode(config.preemption_mode), costs),
        max_num_sessions=config.max_num_sessions,
        max_sessions_per_client=config.max_sessions_per_client
        or max(1, config.max_num_sessions // 2),
        attention_sinks=config.attention_sinks,
        max_queue_time=config.max_queue_time,
    )
    intake = Intake(
        tokenizer,
        vocab_size=model.vocab_size,
        max_model_len=capacity.max_model_len,
        default_max_tokens=model.max_positions,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
        sampling_defaults=defaults,
    )
    engine = Engine(
        scheduler,
        executor,
        intake,
        block_bytes=capacity.mean_block_bytes,
        session_timeout=config.session_timeout,
        why_no_sessions=_why_no_sessions(config, model),
        recorder=_recorder(config),
        run_ahead=placement.asynchronous and config.async_scheduling is not False,
        max_num_waiting=config.max_num_waiting,
    )
    release_threads()  # it may run in another thread than this one
    return engine, capacity


def _why_no_sessions(config: EngineConfig, model: Model) -> str | None:
    if config.kv_allocator != "paged":
        return 'sessions need kv_allocator "paged": contiguous memory is reserved to the end'
    if model.kv_depends_on_prompt_length:
        return "this model's rotary scaling depends on the length of the prompt: no sessions"
    return None


def _load_model(config: EngineConfig, directory: Path, placement: Placement) -> Model:
    if config.window is None:
        return load_model(
            directory,
            config.dtype,
            config.max_model_len,
            quantization=config.quantization,
            device=placement.device,
            admit=placement.admit,
        )
    # The length of its texts is then no matter of the model's.
    streaming = Streaming(config.window, config.attention_sinks)
    return load_model(
        directory,
        config.dtype,
        streaming=streaming,
        quantization=config.quantization,
        device=placement.device,
        admit=placement.admit,
    )


def _recorder(config: EngineConfig) -> RequestRecorder | None:
    if config.record_trace is None:
        return None
    return RequestRecorder(Path(config.record_trace), config.block_size, time.monotonic())


def _choose_placement(config: EngineConfig) -> Placement:
    device = choose_device(config.device)
    if device.type == "cpu":
        if config.kv_cache_dtype == "fp8":
            raise ConfigError('kv_cache_dtype "fp8" needs a GPU, and there is none to be used')
        if config.async_scheduling:
            raise ConfigError("async_scheduling needs a GPU, and there is none to be used")
        return OnCPU(config.block_size, config.swap_path)
    if config.swap_path is not None:
        raise ConfigError("swap_path: on a GPU, blocks are swapped to main memory; leave it out")
    # Needs Triton, which only machines with a GPU have.
    from quire.execution.gpu.assembly import Limits, OnGPU

    limits = Limits(
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.gpu_memory_utilization,
        config.enforce_eager,
    )
    return OnGPU(device, limits)


def _allocator(config: EngineConfig, capacity: Capacity) -> KVAllocator:
    size = config.block_size
    if config.kv_allocator == "paged":
        lanes = [
            PagedAllocator(lane.num_blocks, size, lane.num_host_blocks, lane.window)
            for lane in capacity.lanes
        ]
        return lanes[0] if len(lanes) == 1 else LayeredAllocator(lanes)
    (lane,) = capacity.lanes
    reservation, longest = Reservation(config.kv_allocator), capacity.max_model_len
    assert longest is not None, "windows need the paged allocator"
    return ContiguousAllocator(lane.num_blocks, size, reservation, longest, lane.num_host_blocks)


def _plan_capacity(config: EngineConfig, model: Model, placement: Placement) -> Capacity:
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
    kv_dtype = _kv_dtype(config, model)
    lanes, block_bytes = _plan_lanes(config, model, placement.room(model, kv_dtype))
    return Capacity(
        model_name=DEMO_NAME if config.model is None else config.model,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=config.quantization,
        weight_bytes=model.weight_bytes,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        kv_bytes_per_token=bytes_per_token(model.kv_shapes, kv_dtype),
        block_size=config.block_size,
        lanes=lanes,
        pool_bytes=sum(n.num_blocks * size for n, size in zip(lanes, block_bytes, strict=True)),
        max_model_len=_longest_that_fits(config, model, lanes, block_bytes),
        prefix_caching=prefix_caching is not False,
        host_blocks=placement.host_blocks,
    )


def _plan_lanes(
    config: EngineConfig, model: Model, room: Room
) -> tuple[tuple[Lane, ...], list[int]]:
    """Divide the KV memory among the lanes; the bytes of a block in each of them."""
    size, num_seqs = config.block_size, config.max_num_seqs
    # Regions of consecutive blocks keep every token.
    windows = model.windows if config.kv_allocator == "paged" else (None,) * len(model.windows)
    groups = layers_by_window(windows)
    seen = [
        None
        if window is None
        else Window(window, config.max_num_batched_tokens, config.attention_sinks)
        for window in groups
    ]
    kv_dtype = _kv_dtype(config, model)
    block_bytes = [
        bytes_per_token([model.kv_shapes[layer] for layer in layers], kv_dtype) * size
        for layers in groups.values()
    ]
    lengths = [blocks_of(_longest(config, model), size, window) for window in seen]
    least, full_load = (
        [blocks_needed(*lane, size, count) for lane in zip(seen, lengths, strict=True)]
        for count in (1, num_seqs)
    )
    full_bytes = sum(n * each for n, each in zip(full_load, block_bytes, strict=True))
    together = sum(block_bytes)  # of a block in every lane
    budget = together * pool_blocks(
        together, math.ceil(full_bytes / together), config.kv_cache_memory_bytes, *room
    )
    most = [None if window is None else n for window, n in zip(seen, full_load, strict=True)]
    blocks = divide(budget, block_bytes, least, most)
    swap_bytes = int(config.swap_space * 2**30)
    host_blocks = [0] * len(blocks)
    if config.swap_space:
        if swap_bytes < together:
            raise ConfigError(f"swap_space must hold at least one block, {together:,} bytes")
        host_blocks = divide(swap_bytes, block_bytes, [1] * len(blocks), most)
    lanes = map(Lane, groups.values(), blocks, host_blocks, seen)
    return tuple(lanes), block_bytes


def _longest(config: EngineConfig, model: Model) -> int | None:
    """The longest sequence to serve, whatever the pool allows; None: there is no longest."""
    return model.max_positions if config.window is None else config.max_model_len


def _kv_dtype(config: EngineConfig, model: Model) -> torch.dtype:
    if config.kv_cache_dtype == "auto":
        return model.dtype
    name = {"fp8": "float8_e4m3fn"}.get(config.kv_cache_dtype, config.kv_cache_dtype)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _longest_that_fits(
    config: EngineConfig, model: Model, lanes: Sequence[Lane], block_bytes: Sequence[int]
) -> int | None:
    """The longest sequence to serve, or what the pool allows one."""
    size, longest = config.block_size, _longest(config, model)
    needed = [
        blocks_needed(lane.window, blocks_of(longest, size, lane.window), size) for lane in lanes
    ]
    short = [lane for lane, n in zip(lanes, needed, strict=True) if lane.num_blocks < n]
    if not short:
        return longest
    fits = min(lane.num_blocks for lane in short) * size
    total = sum(n * each for n, each in zip(needed, block_bytes, strict=True))
    if longest is None or config.window is not None:
        raise ConfigError(
            f"attention_sinks + window + max_num_batched_tokens need a KV pool of {_size(total)}: "
            "lower one of them or raise kv_cache_memory_bytes"
        )
    if config.max_model_len is not None or not fits:
        raise ConfigError(
            f"max_model_len {longest} needs a KV pool of {_size(total)}; there is room "
            f"for {fits} tokens: lower max_model_len or raise kv_cache_memory_bytes"
        )
    return fits


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
        return read_text(Path(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template cannot be read: {error}") from error


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"
