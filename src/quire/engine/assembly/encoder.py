"""Where the engine of an encoder is put together: as any other, but without a pool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from quire.capabilities.pooling.files import bytes_of, read_pooler
from quire.capabilities.sessions import SessionManager, SessionRules
from quire.core.errors import ConfigError, ModelError
from quire.core.limits import EngineLimits
from quire.core.protocol import RecoveryCosts
from quire.engine.assembly.loading import dtype_name
from quire.engine.assembly.main_memory import bytes_for_waiting
from quire.engine.assembly.recording import record
from quire.engine.capabilities import Capabilities, renewal
from quire.engine.capacity import Capacity, limits_of
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine, ExecutorTraits
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.scheduling import scheduler_of
from quire.engine.waiting_room import QueueLimits
from quire.execution.device_runtime import DeviceRuntime
from quire.execution.encoding import EncoderExecutor
from quire.models.config import ModelConfig
from quire.models.encoder import EncoderModel
from quire.models.files import read_object
from quire.models.loader import load_encoder
from quire.models.shape import CacheShape, ConfigFields
from quire.text.params import Pooling
from quire.text.tokenizer import Tokenizer, tells_types

_NOT_FOR_ENCODERS = (
    *("quantization", "speculative_config", "enable_lora", "tensor_parallel_size", "window"),
    *("kv_cache_dtype", "kv_cache_memory_bytes", "kv_store", "kv_offloading_size"),
    *("swap_space", "role", "experts_path"),
)
_NO_SESSIONS = "this model is an encoder: no sessions"
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


def build_encoder(
    config: EngineConfig,
    runtime: DeviceRuntime,
    directory: Path,
    described: ModelConfig,
    tokenizer: Tokenizer,
) -> tuple[Engine, Capacity]:
    """An engine that embeds, or judges, and its capacity. ConfigError for what it cannot do."""
    _refuse_settings(config)
    usual = _longest_of_texts(directory, tokenizer)
    files = directory, described, tokenizer
    given = config.pooler_config
    pooler, dense = read_pooler(*files, runtime.admit, Pooling.MEAN, given)
    with runtime.start_up_lock():
        model = load_encoder(
            directory, config.dtype, config.max_model_len, usual, runtime.admit, config.hf_overrides
        ).to(runtime.device)
    chance = _is_chance(described.fields) if model.labels else True
    pooler = replace(pooler, labels=model.labels, chance=chance)
    cache = CacheShape((), (), model.max_positions, depends_on_prompt_length=False)
    limits = limits_of(config, cache)
    capacity, started = _capacity(config, limits, model, bytes_of(dense)), time.monotonic()
    judges_types = model.labels > 0 and model.has_types and tells_types(directory)
    executor = EncoderExecutor(model, types=judges_types, dense=dense)
    schedule = partial(scheduler_of, limits, RecoveryCosts())
    engine = Engine(
        schedule(),
        executor,
        InputProcessor(
            tokenizer,
            ModelOutputs(model.vocab_size, pooler=pooler, generates=False),
            max_model_len=limits.max_model_len,
            seed=config.seed,
        ),
        ExecutorTraits(parts=executor.parts, afresh=renewal(executor, schedule)),
        capabilities=Capabilities(
            SessionManager(SessionRules(config.session_timeout, why_not=_NO_SESSIONS))
        ),
        queue=QueueLimits(config.max_num_waiting, bytes_for_waiting(), limits.max_model_len or 0),
    )
    record(engine, config, capacity, started)
    return engine, capacity


def _refuse_settings(config: EngineConfig) -> None:
    asked = [
        name
        for name in _NOT_FOR_ENCODERS
        if getattr(config, name) != getattr(EngineConfig, name, None)
    ]
    if config.enable_prefix_caching:
        asked.append("enable_prefix_caching")
    if config.kv_events is not None:
        asked.append("kv_events_config")
    if asked:
        raise ConfigError(
            f"{asked[0]} is not for encoders, which transformers computes and which keep no keys "
            "and values: leave it out"
        )


def _longest_of_texts(directory: Path, tokenizer: Tokenizer) -> int | None:
    """Tokens to which sentence-transformers would cut texts, where its file says so.

    ModelError: texts are to be turned into lower case, which the tokenizer does not do.
    """
    path = directory / "sentence_bert_config.json"
    if not path.exists():
        return None
    fields = ConfigFields(read_object(path), str(path))
    if fields.get("do_lower_case", bool, False) and tokenizer.encode("A") != tokenizer.encode("a"):
        raise ModelError(f"{path}: do_lower_case is set, but this tokenizer keeps capitals")
    given = fields.values.get("max_seq_length")
    return None if given is None else fields.positive("max_seq_length")


def _is_chance(fields: ConfigFields) -> bool:
    """Whether a pair's score is the sigmoid of its logit, by sentence-transformers' fields."""
    given = fields.values.get("sentence_transformers")
    name = given.get("activation_fn") if isinstance(given, Mapping) else None
    name = name or fields.values.get("sbert_ce_default_activation_function") or "Sigmoid"
    kind = str(name).rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        raise fields.wrong("activation_fn", " or ".join(_ACTIVATIONS))
    return _ACTIVATIONS[kind]


def _capacity(
    config: EngineConfig, limits: EngineLimits, model: EncoderModel, dense_bytes: int
) -> Capacity:
    assert config.model is not None, "the demonstration model is a decoder"
    return Capacity(
        model_name=config.model,
        dtype=dtype_name(model.dtype),
        quantization=None,
        weight_bytes=model.weight_bytes + dense_bytes,
        kv_dtype=dtype_name(model.dtype),
        kv_bytes_per_token=0,
        pool_bytes=0,
        limits=limits,
        host_blocks="",
        kernels="transformers",
    )
