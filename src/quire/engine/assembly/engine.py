"""Where an engine is put together from its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from quire.blocks.events import EventPublisher
from quire.blocks.store import Store
from quire.blocks.transfer import BlockServer
from quire.capabilities.adapters.config import AdapterShare
from quire.capabilities.adapters.reading import adapter_check, most_bytes, serve_adapters
from quire.capabilities.adapters.served import Adapters
from quire.capabilities.misses import MissFinder
from quire.capabilities.pooling.files import bytes_of, read_pooler
from quire.capabilities.pooling.pooler import Pooler
from quire.capabilities.sessions import Ring, SessionManager, SessionRules
from quire.capabilities.speculation import speculation_of
from quire.capabilities.speculation.model import DraftModel
from quire.core.errors import DOCTOR, ConfigError, ModelError
from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource
from quire.core.protocol import RecoveryCosts
from quire.core.scheduling import Scheduler
from quire.engine.assembly.centring import with_centred_keys
from quire.engine.assembly.draft import draft_share, load_draft, with_draft
from quire.engine.assembly.encoder import build_encoder
from quire.engine.assembly.loading import (
    cache_shape,
    default_sampling,
    dtype_name,
    forms_of,
    kv_dtype,
    load,
    locate,
    streaming,
)
from quire.engine.assembly.main_memory import (
    bytes_for_waiting,
    describe_experts,
    kept_and_files,
    left_by_adapters,
    left_for_pool,
    working_bytes,
)
from quire.engine.assembly.ranks.fetching import fetch_on_all
from quire.engine.assembly.ranks.gathering import gather
from quire.engine.assembly.ranks.runtime import on_ranks
from quire.engine.assembly.ranks.team import Team
from quire.engine.assembly.recording import record
from quire.engine.assembly.store import (
    BlocksOf,
    Transfer,
    begin_transfer,
    check_store,
    describe_store,
    describe_transfer,
    listen_for_decoders,
    open_store,
)
from quire.engine.assembly.tokenizer import tokenizer_of
from quire.engine.capabilities import Capabilities, renewal
from quire.engine.capacity import Capacity, fill, form_key, known_loss, limits_of, size_of
from quire.engine.config import EngineConfig, check_on_gpu
from quire.engine.engine import Engine, ExecutorTraits
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.scheduling import scheduler_of
from quire.engine.waiting_room import QueueLimits
from quire.execution.device import choose_device
from quire.execution.device_runtime import DeviceRuntime, Draft, OnCPU
from quire.execution.executor import ModelExecutor
from quire.execution.free_memory import memory_or_refusal
from quire.execution.kv_bytes import bytes_of_blocks, bytes_of_pool
from quire.execution.prompt_vectors import VectorForm
from quire.execution.ranks import SharedSource
from quire.kernels.dispatch import release_threads
from quire.kernels.heap import keep_what_steps_take
from quire.kernels.instructions import choose_instructions
from quire.kernels.layer_memory import KVShape
from quire.kernels.threads import usable_cores
from quire.models.base import Model
from quire.models.checkpoint_files import find_files
from quire.models.config import ModelConfig, read_config
from quire.models.dense import Dense
from quire.models.loader import is_encoder, load_model
from quire.models.shape import CacheShape, read_shape
from quire.text.tokenizer import Tokenizer

DEMO_NAME = "quire-demo"
_NO_SOFT_CUTS_OF_STATES = (
    "this model's layers keep a state of all the history, which cannot count for less: "
    "soft_cut is for models whose layers all have attention; use hard_cut or recompute"
)
_NO_SOFT_CUTS_OF_INDEXES = (
    "an index chooses the tokens that this model's tokens attend to, whatever they count: use "
    "hard_cut or recompute"
)
_NO_SOFT_CUTS_ON_GPU = "soft cuts are computed on CPUs only: choose device cpu, or cut hard"


@memory_or_refusal()
def build_engine(config: EngineConfig, engines: int = 1) -> tuple[Engine, Capacity]:
    """Load the model and give it a scheduler, a KV pool and a tokenizer.

    engines: how many like it share this machine's memory.
    """
    # By default as many as torch would take (OMP_NUM_THREADS), but no more than can run at once.
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), usable_cores()))
    runtime = _choose_runtime(config)
    check_store(config)
    with ExitStack() as undone:
        # First, because an address that is taken is known in no time.
        events = None if config.kv_events is None else EventPublisher(config.kv_events)
        if events is not None:
            undone.callback(events.close)
        server = listen_for_decoders(config)
        if server is not None:
            undone.callback(server.close)
        team = None if config.tensor_parallel_size == 1 else gather(config)
        if team is not None:
            undone.callback(team.close)
        built = _build(config, runtime, events, server, team, engines)
        undone.pop_all()
    return built


def _build(
    config: EngineConfig,
    runtime: DeviceRuntime,
    events: EventPublisher | None,
    server: BlockServer | None,
    team: Team | None,
    engines: int,
) -> tuple[Engine, Capacity]:
    """team: the other ranks, which have been started and do the same."""
    keep_what_steps_take()
    directory = locate(config)
    # First: without it, what a tokenizer lacks would not be the point.
    described = read_config(directory, config.hf_overrides)
    tokenizer = tokenizer_of(config)
    if is_encoder(described):
        engine, capacity = build_encoder(config, runtime, directory, described, tokenizer)
        return engine, _named(capacity, config, directory, described)
    pooler, dense = read_pooler(
        directory, described, tokenizer, runtime.admit, given=config.pooler_config
    )
    defaults = default_sampling(config, directory)
    if team is not None:
        runtime = on_ranks(config, directory, runtime, team)
    with runtime.start_up_lock():
        loaded = _load(config, directory, tokenizer, runtime, team, engines)
        model, draft, dtype, _, limits, adapters, _, waiting_bytes = loaded
        store, transfer, source = _blocks_outside(config, directory, loaded, runtime, server, team)
        weights = None if adapters is None else adapters.weights
        executor = runtime.executor(model, limits, dtype, draft, weights, source)
    costs = _recovery_costs(config, runtime, store)
    executor.tell_forced = config.speculation is not None
    executor.pools.dense = dense
    beyond = describe_transfer(config, server) or describe_store(store, costs, limits.block_size)
    capacity, started = _capacity(config, loaded, runtime, beyond, dense), time.monotonic()
    schedule = partial(scheduler_of, limits, costs, source)
    outputs = _outputs(loaded, runtime, pooler)
    processor = _input_processor(config, model, limits, tokenizer, defaults, outputs, adapters)
    engine = Engine(
        schedule(),
        executor,
        processor,
        _traits(config, runtime, capacity, executor, schedule),
        capabilities=Capabilities(
            sessions=SessionManager(_session_rules(config, loaded, runtime)),
            adapters=adapters,
            speculation=speculation_of(config.speculation),
            transfer=transfer,
            store=store,
            events=events,
            others=team,
            grammars=processor.grammars,
            misses=MissFinder(),
        ),
        queue=QueueLimits(config.max_num_waiting, waiting_bytes, limits.max_model_len or 0),
    )
    record(engine, config, capacity, started)
    if events is not None:
        events.start(config.block_size, [one.kept for one in limits.kv_groups])
    release_threads()  # it may run in another thread than this one
    return engine, _named(capacity, config, directory, described)


def _named(
    capacity: Capacity, config: EngineConfig, directory: Path, described: ModelConfig
) -> Capacity:
    """With the model's family, how many parameters it has, where its config tells, and what its
    form loses, where that is known.
    """
    try:
        count = read_shape(directory, config.hf_overrides).num_params
    except ModelError:
        count = 0
    family = str(described.fields.values.get("model_type", ""))
    types = capacity.dtype, config.quantization, capacity.kv_dtype, config.window
    key = form_key(find_files(directory).paths, [*map(str, types), str(config.hf_overrides)])
    loss = known_loss(key)
    return replace(capacity, family=family, num_parameters=count, form_key=key, loss=loss)


def _traits(
    config: EngineConfig,
    runtime: DeviceRuntime,
    capacity: Capacity,
    executor: ModelExecutor,
    schedule: Callable[[], Scheduler],
) -> ExecutorTraits:
    return ExecutorTraits(
        block_bytes=capacity.mean_block_bytes,
        run_ahead=runtime.asynchronous and config.async_scheduling is not False,
        parts=executor.parts,
        afresh=renewal(executor, schedule, config.speculation),
    )


def _blocks_outside(
    config: EngineConfig,
    directory: Path,
    loaded: _Loaded,
    runtime: DeviceRuntime,
    server: BlockServer | None,
    team: Team | None,
) -> tuple[Store | None, Transfer | None, BlockSource | None]:
    """Where blocks are kept, who hands them over, and what the scheduler fetches from."""
    forms = forms_of(runtime.kernels, loaded.model, loaded.kv_dtype)
    blocks = BlocksOf(directory, loaded.limits, loaded.cache, forms)
    store = open_store(config, blocks)
    transfer, fetched = begin_transfer(config, server, blocks)
    fetch_on_all(team, transfer)
    part = fetched or store
    return store, transfer, part if team is None or part is None else SharedSource(part)


class _Loaded(NamedTuple):
    """What is in memory before there is a pool, and what the pool is to be."""

    model: Model
    draft: Draft | None
    kv_dtype: torch.dtype
    cache: CacheShape
    limits: EngineLimits
    adapters: Adapters | None
    adapter_share: AdapterShare | None
    waiting_bytes: int


def _load(
    config: EngineConfig,
    directory: Path,
    tokenizer: Tokenizer,
    runtime: DeviceRuntime,
    team: Team | None,
    engines: int,
) -> _Loaded:
    group = None if team is None else team.group
    model = load(config, directory, runtime.device, runtime.admit, runtime.instruction_set, group)
    model = with_centred_keys(config, model, tokenizer, runtime.instruction_set)
    draft = _load_draft(config, model, tokenizer, runtime)
    dtype = kv_dtype(config, model)
    cache = cache_shape(model, dtype)
    if draft is not None:
        cache = with_draft(config, cache, draft)
    limits = limits_of(config, cache)
    adapters, share = _serve_adapters(config, model, runtime.instruction_set, team)
    with runtime.settling():
        budget = left_by_adapters(runtime.memory_budget(model, limits, dtype), share)
        if runtime.device.type == "cpu":
            working = working_bytes(limits, model, directory, config)
            among = 1 if runtime.counts_others else engines
            budget = left_for_pool(budget, config, working, among)
        budget = budget._replace(share=budget.share / engines)
        try:
            limits = fill(limits, cache, config, budget)
        except ConfigError as error:
            raise _with_share(error, draft, cache) from error
        runtime.promise(*kept_and_files(config, limits, cache))
    waiting = bytes_for_waiting(budget.beside, engines)
    return _Loaded(model, draft, dtype, cache, limits, adapters, share, waiting)


def _serve_adapters(
    config: EngineConfig, model: Model, instruction_set: str, team: Team | None
) -> tuple[Adapters | None, AdapterShare | None]:
    """The adapters that are asked for, and the memory that they may take."""
    if not config.enable_lora:
        return None, None
    most_kept, rank = config.max_cpu_loras or config.max_loras, config.max_lora_rank
    check = adapter_check(model, instruction_set, rank)
    adapters, tables = serve_adapters(config.adapters, most_kept, check, team)
    each = most_bytes(model, rank) + tables
    return adapters, AdapterShare(config.max_loras, most_kept, rank, each)


def _recovery_costs(
    config: EngineConfig, runtime: DeviceRuntime, store: Store | None
) -> RecoveryCosts:
    """Measured only where a decision depends on them."""
    if store is not None:
        measured = runtime.recovery_costs()
        return replace(measured, fetch_per_block=store.seconds_to_fetch())
    if config.swap_space and config.preemption_mode == "auto":
        return runtime.recovery_costs()
    return RecoveryCosts()


def _session_rules(config: EngineConfig, loaded: _Loaded, runtime: DeviceRuntime) -> SessionRules:
    why_not = None
    if loaded.cache.depends_on_prompt_length:
        why_not = "this model's rotary scaling depends on the length of the prompt: no sessions"
    why_no_soft_cuts = None if runtime.device.type == "cpu" else _NO_SOFT_CUTS_ON_GPU
    limits = loaded.limits
    if limits.states is not None:
        why_no_soft_cuts = _NO_SOFT_CUTS_OF_STATES
    if any(isinstance(shape, KVShape) and shape.index_dim for shape in loaded.model.kv_shapes):
        why_no_soft_cuts = _NO_SOFT_CUTS_OF_INDEXES
    longest, window = limits.max_model_len, limits.kv_groups[0].window
    size = window.sinks + window.tokens if longest is None and window else longest
    return SessionRules(
        config.session_timeout,
        longest,
        why_not,
        why_no_soft_cuts,
        limits.max_num_sessions,
        limits.max_sessions_per_client,
        Ring(limits.attention_sinks, size),
    )


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
            streaming=streaming(config),
            quantization=quantization,
            admit=runtime.admit,
            instruction_set=runtime.instruction_set,
        )

    model = load_draft(config, target, tokenizer, load)
    model = with_centred_keys(config, model, tokenizer, runtime.instruction_set)
    return Draft(model, kv_dtype(config, model), DraftModel)


def _with_share(error: ConfigError, draft: Draft | None, cache: CacheShape) -> ConfigError:
    """An error about room for a pool, with the draft model's share."""
    if draft is None:
        return ConfigError(f"{error}; {DOCTOR}")
    own = cache_shape(draft.model, draft.kv_dtype).bytes_per_token
    return ConfigError(
        f"{error}. The draft model takes {size_of(draft.model.weight_bytes)} for its weights, and "
        f"{size_of(own)} of the {size_of(cache.bytes_per_token)} of each token in the pool: "
        f"without speculative_config there is more room; {DOCTOR}"
    )


def _outputs(loaded: _Loaded, runtime: DeviceRuntime, pooler: Pooler) -> ModelOutputs:
    """What a model gives, and the vectors that its prompts may be made of."""
    model, vectors = loaded.model, None
    if loaded.draft is None and runtime.device.type == "cpu" and model.vector_width is not None:
        vectors = VectorForm(model.vector_width, model.dtype)
    ends, has_head = model.eos_token_ids, model.has_head
    return ModelOutputs(model.vocab_size, ends, pooler, has_head, vectors)


def _input_processor(
    config: EngineConfig,
    model: Model,
    limits: EngineLimits,
    tokenizer: Tokenizer,
    defaults: dict[str, float | int],
    outputs: ModelOutputs,
    adapters: Adapters | None,
) -> InputProcessor:
    return InputProcessor(
        tokenizer,
        outputs,
        max_model_len=limits.max_model_len,
        default_max_tokens=model.max_positions,
        seed=config.seed,
        sampling_defaults=defaults,
        adapters=adapters,
        additional_properties=config.additional_properties,
    )


def _capacity(
    config: EngineConfig,
    loaded: _Loaded,
    runtime: DeviceRuntime,
    store: str,
    dense: Sequence[Dense],
) -> Capacity:
    model, draft, dtype, cache, limits, _, adapter_share, _ = loaded
    pool_bytes = bytes_of_pool(limits, cache)
    return Capacity(
        model_name=DEMO_NAME if config.model is None else config.model,
        dtype=dtype_name(model.dtype),
        quantization=config.quantization,
        weight_bytes=model.weight_bytes + bytes_of(dense),
        token_bytes=model.token_bytes,
        state_bytes=bytes_of_blocks(limits, cache)[-1] if limits.states is not None else 0,
        kv_dtype=dtype_name(dtype),
        kv_bytes_per_token=cache.bytes_per_token,
        pool_bytes=pool_bytes,
        limits=limits,
        host_blocks=runtime.host_blocks,
        warm_seconds=runtime.warm_seconds,
        kernels=runtime.kernels,
        experts=describe_experts(model, config),
        speculation=config.speculation,
        draft=None if draft is None else draft_share(config, draft),
        adapters=adapter_share,
        ranks=config.tensor_parallel_size,
        store=store,
    )


def _choose_runtime(config: EngineConfig) -> DeviceRuntime:
    device = choose_device(config.device)
    if device.type == "cpu":
        if config.kv_cache_dtype == "fp8":
            raise ConfigError('kv_cache_dtype "fp8" needs a GPU, and there is none to be used')
        if config.async_scheduling:
            raise ConfigError("async_scheduling needs a GPU, and there is none to be used")
        instructions = choose_instructions(config.cpu_isa)
        return OnCPU(config.swap_path, instructions, warm_up=bool(config.warm_up))
    check_on_gpu(config)
    # Needs Triton, which only machines with a GPU have.
    from quire.execution.gpu.assembly import OnGPU

    return OnGPU(device, config.gpu_memory_utilization, config.enforce_eager)
