"""Where an engine is put together from its parts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quire.assembly.adapters import adapter_shelf, without_adapters
from quire.assembly.draft import draft_name, load_draft
from quire.assembly.pooling import read_pooler
from quire.assembly.store import check_store, describe_store, open_store
from quire.assembly.transfer import begin_transfer, listen_for_decoders
from quire.capacity import AdapterShare, Capacity, DraftShare, EngineLimits, fill, size_of
from quire.config import (
    NO_ADAPTERS_ON_GPU,
    NO_DRAFT_MODEL_ON_GPU,
    NO_STORE_ON_GPU,
    EngineConfig,
)
from quire.drafting import speculation_of
from quire.engine import (
    AdapterShelf,
    Engine,
    InputProcessor,
    RequestRecorder,
    Tokenizer,
    load_tokenizer,
)
from quire.errors import ConfigError, ModelError, QuireError, RequestError
from quire.events import EventPublisher
from quire.execution.device import choose_device
from quire.execution.device_runtime import DeviceRuntime, Draft, OnCPU
from quire.execution.free_memory import memory_or_refusal
from quire.execution.kv.cache import bytes_per_token
from quire.files import read_text
from quire.heap import keep_what_steps_take
from quire.kernels.dispatch import release_threads
from quire.kernels.instructions import choose_instructions
from quire.model import Model, Streaming, load_model, read_config, resolve_model, sampling_defaults
from quire.protocol import Pooler, RecoveryCosts, SamplingParams
from quire.shape import SAMPLING_DEFAULTS, CacheShape
from quire.threads import usable_cores
from quire.transfer import BlockServer

DEMO_MODEL = Path(__file__).parent.parent / "demo"
DEMO_NAME = "quire-demo"


@memory_or_refusal()
def build_engine(config: EngineConfig) -> tuple[Engine, Capacity]:
    """Load the model and give it a scheduler, a KV pool and a tokenizer."""
    # First, because an address that is taken is known in no time.
    events = None if config.kv_events is None else EventPublisher(config.kv_events)
    server = None
    try:
        server = listen_for_decoders(config)
        return _build(config, events, server)
    except BaseException:
        for part in (events, server):
            if part is not None:
                part.close()
        raise


def _build(
    config: EngineConfig, events: EventPublisher | None, server: BlockServer | None
) -> tuple[Engine, Capacity]:
    # By default as many as torch would take (OMP_NUM_THREADS), but no more than can run at once.
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), usable_cores()))
    runtime = _choose_runtime(config)
    check_store(config)
    keep_what_steps_take()
    directory = resolve_model(config.model or DEMO_MODEL, config.revision, config.download_dir)
    # First: without it, what a tokenizer lacks would not be the point.
    described = read_config(directory, config.hf_overrides)
    tokenizer = _load_tokenizer(config, directory)
    pooler = read_pooler(directory, described, config.pooler_config, tokenizer)
    defaults = _sampling_defaults(config, directory)
    with runtime.start_up_lock():
        model = _load_model(config, directory, runtime)
        draft = _load_draft(config, model, tokenizer, runtime)
        kv_dtype = _kv_dtype(config, model)
        cache = _cache_shape(model, kv_dtype)
        if draft is not None:
            cache = cache.with_draft(_cache_shape(*draft))
        limits = EngineLimits.of(config, cache)
        shelf, adapters = adapter_shelf(config, model, runtime.instruction_set) or (None, None)
        budget = without_adapters(runtime.memory_budget(model, limits, kv_dtype), adapters)
        try:
            limits = fill(limits, cache, config, budget)
        except ConfigError as error:
            raise _with_share(error, draft, cache) from error
        weights = None if shelf is None else shelf.weights
        forms = [runtime.kernels, _name(model.dtype), _name(kv_dtype)]
        store = open_store(config, directory, limits, cache, forms)
        transfer, source = begin_transfer(config, server, directory, limits, cache, forms)
        source = source or store
        executor = runtime.executor(model, limits, kv_dtype, draft, weights, source)
    costs = RecoveryCosts()
    if store is not None or (config.swap_space and config.preemption_mode == "auto"):
        costs = runtime.recovery_costs()
    if store is not None:
        costs = replace(costs, fetch_per_block=store.seconds_to_fetch())
    executor.tell_forced = config.speculation is not None
    capacity = _capacity(config, model, draft, cache, limits, runtime, adapters)
    capacity = replace(capacity, store=describe_store(store, costs, limits.block_size))
    engine = Engine(
        limits.scheduler(costs, source),
        executor,
        _input_processor(config, model, limits, tokenizer, defaults, pooler, shelf),
        block_bytes=capacity.mean_block_bytes,
        session_timeout=config.session_timeout,
        why_no_sessions=_why_no_sessions(config, cache),
        recorder=_recorder(config),
        run_ahead=runtime.asynchronous and config.async_scheduling is not False,
        max_num_waiting=config.max_num_waiting,
        speculation=speculation_of(config.speculation),
        adapters=shelf,
        events=events,
        store=store,
        transfer=transfer,
    )
    if events is not None:
        events.start(config.block_size, limits.windows)
    release_threads()  # it may run in another thread than this one
    return engine, capacity


def _why_no_sessions(config: EngineConfig, cache: CacheShape) -> str | None:
    if config.kv_allocator != "paged":
        return 'sessions need kv_allocator "paged": contiguous memory is reserved to the end'
    if cache.depends_on_prompt_length:
        return "this model's rotary scaling depends on the length of the prompt: no sessions"
    return None


def _load_tokenizer(config: EngineConfig, directory: Path) -> Tokenizer:
    if config.tokenizer is not None:
        directory = resolve_model(config.tokenizer, download_dir=config.download_dir)
    return load_tokenizer(directory, _read_template(config.chat_template))


def _load_model(config: EngineConfig, directory: Path, runtime: DeviceRuntime) -> Model:
    return load_model(
        directory,
        config.dtype,
        # With a window, the length of its texts is no matter of the model's.
        config.max_model_len if config.window is None else None,
        streaming=_streaming(config),
        quantization=config.quantization,
        device=runtime.device,
        admit=runtime.admit,
        instruction_set=runtime.instruction_set,
        hf_overrides=config.hf_overrides,
    )


def _streaming(config: EngineConfig) -> Streaming | None:
    if config.window is None:
        return None
    return Streaming(config.window, config.attention_sinks)


def _load_draft(
    config: EngineConfig, target: Model, tokenizer: Tokenizer, runtime: DeviceRuntime
) -> Draft | None:
    """The model that drafts for ``target``, if one is asked for."""
    if config.speculation is None or not config.speculation.has_draft_model:
        return None

    def load(directory: Path, longest: int | None, quantization: str | None) -> Model:
        return load_model(
            directory,
            config.dtype,
            longest,
            streaming=_streaming(config),
            quantization=quantization,
            admit=runtime.admit,
            instruction_set=runtime.instruction_set,
        )

    model = load_draft(config, target, tokenizer, load)
    return Draft(model, _kv_dtype(config, model))


def _with_share(error: ConfigError, draft: Draft | None, cache: CacheShape) -> ConfigError:
    """No room for a pool: how much of it is the draft model's."""
    if draft is None:
        return error
    own = _cache_shape(*draft).bytes_per_token
    return ConfigError(
        f"{error}. The draft model takes {size_of(draft.model.weight_bytes)} for its weights, and "
        f"{size_of(own)} of the {size_of(cache.bytes_per_token)} of each token in the pool: "
        "without speculative_config there is more room"
    )


def _input_processor(
    config: EngineConfig,
    model: Model,
    limits: EngineLimits,
    tokenizer: Tokenizer,
    defaults: dict[str, float | int],
    pooler: Pooler,
    adapters: AdapterShelf | None,
) -> InputProcessor:
    return InputProcessor(
        tokenizer,
        vocab_size=model.vocab_size,
        max_model_len=limits.max_model_len,
        default_max_tokens=model.max_positions,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
        sampling_defaults=defaults,
        pooler=pooler,
        generates=model.has_head,
        adapters=adapters,
    )


def _capacity(
    config: EngineConfig,
    model: Model,
    draft: Draft | None,
    cache: CacheShape,
    limits: EngineLimits,
    runtime: DeviceRuntime,
    adapters: AdapterShare | None,
) -> Capacity:
    return Capacity(
        model_name=DEMO_NAME if config.model is None else config.model,
        dtype=_name(model.dtype),
        quantization=config.quantization,
        weight_bytes=model.weight_bytes,
        kv_dtype=_name(_kv_dtype(config, model)),
        kv_bytes_per_token=cache.bytes_per_token,
        pool_bytes=limits.pool_bytes(cache),
        limits=limits,
        host_blocks=runtime.host_blocks,
        kernels=runtime.kernels,
        experts=_describe_experts(model),
        speculation=config.speculation,
        draft=None if draft is None else _draft_share(config, draft),
        adapters=adapters,
    )


def _describe_experts(model: Model) -> str:
    if model.experts is None:
        return ""
    num, chosen, weight_bytes = model.experts
    read = model.weight_bytes - weight_bytes + weight_bytes * chosen // num
    return (
        f" Experts: {num}, {chosen} a token; {size_of(weight_bytes)} of the weights are theirs, "
        f"and {size_of(read)} of all are read a token."
    )


def _draft_share(config: EngineConfig, draft: Draft) -> DraftShare:
    assert config.speculation is not None
    return DraftShare(
        model_name=draft_name(config.speculation),
        dtype=_name(draft.model.dtype),
        quantization=config.speculation.quantization,
        weight_bytes=draft.model.weight_bytes,
        kv_bytes_per_token=_cache_shape(*draft).bytes_per_token,
    )


def _recorder(config: EngineConfig) -> RequestRecorder | None:
    if config.record_trace is None:
        return None
    return RequestRecorder(
        Path(config.record_trace),
        config.block_size,
        time.monotonic(),
        drafts=config.speculation is not None,
    )


def _choose_runtime(config: EngineConfig) -> DeviceRuntime:
    device = choose_device(config.device)
    if device.type == "cpu":
        if config.kv_cache_dtype == "fp8":
            raise ConfigError('kv_cache_dtype "fp8" needs a GPU, and there is none to be used')
        if config.async_scheduling:
            raise ConfigError("async_scheduling needs a GPU, and there is none to be used")
        return OnCPU(config.swap_path, choose_instructions(config.cpu_isa))
    if config.speculation is not None and config.speculation.has_draft_model:
        raise ConfigError(NO_DRAFT_MODEL_ON_GPU)
    if config.enable_lora:
        raise ConfigError(NO_ADAPTERS_ON_GPU)
    if config.kv_store is not None:
        raise ConfigError(NO_STORE_ON_GPU)
    if config.cpu_isa != "auto":
        raise ConfigError(f"cpu_isa {config.cpu_isa!r} does nothing on a GPU; leave it out")
    if config.swap_path is not None:
        raise ConfigError("swap_path: on a GPU, blocks are swapped to main memory; leave it out")
    # Needs Triton, which only machines with a GPU have.
    from quire.execution.gpu.assembly import OnGPU

    return OnGPU(device, config.gpu_memory_utilization, config.enforce_eager)


def _kv_dtype(config: EngineConfig, model: Model) -> torch.dtype:
    if config.kv_cache_dtype == "auto":
        return model.dtype
    name = {"fp8": "float8_e4m3fn"}.get(config.kv_cache_dtype, config.kv_cache_dtype)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _cache_shape(model: Model, kv_dtype: torch.dtype) -> CacheShape:
    return CacheShape(
        windows=model.windows,
        token_bytes=tuple(bytes_per_token([shape], kv_dtype) for shape in model.kv_shapes),
        max_positions=model.max_positions,
        depends_on_prompt_length=model.kv_depends_on_prompt_length,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sampling_defaults(config: EngineConfig, directory: Path) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    if config.generation_config != "none":
        source = directory if config.generation_config == "auto" else Path(config.generation_config)
        defaults = sampling_defaults(source)
        _check_defaults(defaults, ModelError(f"{source}/generation_config.json"))
    overrides = config.override_generation_config or {}
    for name in overrides:
        if name not in SAMPLING_DEFAULTS:
            known = ", ".join(SAMPLING_DEFAULTS)
            raise ConfigError(f"override_generation_config may hold {known}; not {name}")
    _check_defaults(overrides, ConfigError("override_generation_config"))
    return {**defaults, **overrides}


def _check_defaults(defaults: Mapping[str, Any], refusal: QuireError) -> None:
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise type(refusal)(f"{refusal}: {error}") from error


def _read_template(given: str | None) -> str | None:
    """The text of a file, or the one given, which a brace tells from a name."""
    if given is None or "{" in given:
        return given
    try:
        return read_text(Path(given))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template cannot be read: {error}") from error
