"""What holds for an engine, of what was asked for and what its model can do."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup, layers_by_window
from quire.core.limits import EngineLimits
from quire.core.memory import KeptState, Window
from quire.engine.config import EngineConfig
from quire.models.shape import CacheShape, ChunkLength, windows_in_force

_EVERY, _DECODING = 512, 64
"""Tokens between snapshots of states, while a prompt is read and while it is answered: to take one
costs a copy, a part in a thousand of computing those tokens, and who keeps which is weighed later
(see ``Snapshots``)."""


def limits_of(config: EngineConfig, cache: CacheShape) -> EngineLimits:
    """A config, applied to a model. ConfigError if the model cannot do what is asked for."""
    longest = cache.max_positions if config.window is None else config.max_model_len
    tokens = config.max_num_batched_tokens
    kv_groups = [
        KVGroup(layers, 1, 0, window) for window, layers in _windows(config, cache, longest)
    ]
    kv_groups += _states(config, cache)
    sessions = config.max_num_sessions
    return EngineLimits(
        kv_groups=tuple(kv_groups),
        block_size=config.block_size,
        max_model_len=longest,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=tokens if cache.windows else max(tokens, cache.max_positions),
        enable_prefix_caching=_prefix_caching(config, cache),
        preemption_mode=config.preemption_mode,
        scheduling_policy=config.scheduling_policy,
        attention_sinks=config.attention_sinks,
        max_num_sessions=sessions,
        max_sessions_per_client=config.max_sessions_per_client or max(1, sessions // 2),
        max_queue_time=config.max_queue_time,
        max_loras=config.max_loras if config.enable_lora else 0,
    )


def _windows(
    config: EngineConfig, cache: CacheShape, longest: int | None
) -> Iterable[tuple[Window | None, tuple[int, ...]]]:
    """The windows that blocks are left behind by, each with its layers."""
    paged = [layer for layer, state in enumerate(cache.states) if not state]
    windows = tuple(cache.windows[layer] for layer in paged)
    if config.window is not None:
        windows = (config.window,) * len(windows)
    else:
        windows = windows_in_force(windows, longest)
    for tokens, numbers in layers_by_window(windows).items():
        layers = tuple(paged[number] for number in numbers)
        window = None
        if tokens is not None:
            most, sinks = config.max_num_batched_tokens, config.attention_sinks
            window = Window(tokens, most, sinks, by_chunks=isinstance(tokens, ChunkLength))
        yield window, layers


def _states(config: EngineConfig, cache: CacheShape) -> Iterable[KVGroup]:
    """The group of the layers that keep a state, if there are any."""
    layers = tuple(layer for layer, state in enumerate(cache.states) if state)
    if not layers:
        return
    for setting, given, why in (
        ("window", config.window is not None, "their states have no window"),
        ("attention_sinks", config.attention_sinks > 0, "their states see all that was before"),
    ):
        if given:
            raise ConfigError(f"{setting}: {len(layers)} of this model's {len(cache.windows)} "
                              f"layers keep a state, and {why}; leave it out")  # fmt: skip
    size = config.block_size
    every, decoding = (max(size, tokens // size * size) for tokens in (_EVERY, _DECODING))
    drafts = 0 if config.speculation is None else config.speculation.num_speculative_tokens
    whole = not all(cache.draft_bytes[layer] for layer in layers)
    yield KVGroup(layers, 1, state=KeptState(every, decoding, drafts, whole))


def _prefix_caching(config: EngineConfig, cache: CacheShape) -> bool:
    asked = config.enable_prefix_caching
    if not cache.windows:
        return False  # there is nothing to be found
    if cache.depends_on_prompt_length:
        if asked:
            raise ConfigError(
                "enable_prefix_caching: this model's rotary scaling depends on the length of the "
                "prompt, so its KV blocks cannot be reused; leave the option out"
            )
        for setting, given in (
            ("kv_events_config", config.kv_events is not None),
            ("role", config.role != "both"),
        ):
            if given:
                raise ConfigError(f"{setting}: this model's KV blocks cannot be reused")
        return False
    return asked is not False
