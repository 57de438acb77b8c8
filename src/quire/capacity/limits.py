"""What holds for an engine from its start to its end, in one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from quire.capacity.kv_groups import KVGroup, layers_by_window
from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.memory import (
    BlockSource,
    ContiguousAllocator,
    KVAllocator,
    LayeredAllocator,
    NoBlocks,
    PagedAllocator,
    Reservation,
    Window,
)
from quire.protocol import PreemptionMode, RecoveryCosts, SchedulingPolicy
from quire.scheduling import Beyond, BlockEvents, Preemption, Ring, Scheduler
from quire.shape import CacheShape, windows_in_force


@dataclass(frozen=True)
class EngineLimits:
    """A config, applied to a model. Scheduler, GPU runner and simulator are made from it.

    KV groups: the pool; until ``fill`` has found its size, a block in each KV group. None of them:
        the model keeps no keys and values, and reads each text whole, in one step.
    max_model_len: the longest text, prompt and output; None: a window lets texts go on for ever.
    """

    kv_groups: tuple[KVGroup, ...]
    block_size: int
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_allocator: str
    enable_prefix_caching: bool
    preemption_mode: str
    scheduling_policy: str
    attention_sinks: int
    max_num_sessions: int
    max_sessions_per_client: int
    max_queue_time: float | None
    max_loras: int  # 0: there are no adapters
    kv_events: bool  # whether somebody is told what the prefix cache holds

    @classmethod
    def of(cls, config: EngineConfig, cache: CacheShape) -> EngineLimits:
        """ConfigError if the model cannot do what is asked for."""
        longest = cache.max_positions if config.window is None else config.max_model_len
        tokens = config.max_num_batched_tokens
        kv_groups = (
            KVGroup(layers, 1, 0, window) for window, layers in _windows(config, cache, longest)
        )
        sessions = config.max_num_sessions
        return cls(
            kv_groups=tuple(kv_groups),
            block_size=config.block_size,
            max_model_len=longest,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=tokens if cache.windows else max(tokens, cache.max_positions),
            kv_allocator=config.kv_allocator,
            enable_prefix_caching=_prefix_caching(config, cache),
            preemption_mode=config.preemption_mode,
            scheduling_policy=config.scheduling_policy,
            attention_sinks=config.attention_sinks,
            max_num_sessions=sessions,
            max_sessions_per_client=config.max_sessions_per_client or max(1, sessions // 2),
            max_queue_time=config.max_queue_time,
            max_loras=config.max_loras if config.enable_lora else 0,
            kv_events=config.kv_events is not None,
        )

    def values(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> EngineLimits:
        """Of what ``values`` gave. ConfigError if it is something else."""
        try:
            groups = map(KVGroup.of_values, values["kv_groups"])
            return cls(**{**values, "kv_groups": tuple(groups)})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"these are no limits of an engine: {error}") from None

    def with_blocks(self, num_blocks: int, num_host_blocks: int = 0) -> EngineLimits:
        """The same with so many blocks in each KV group."""
        kv_groups = (
            kv_group._replace(num_blocks=num_blocks, num_host_blocks=num_host_blocks)
            for kv_group in self.kv_groups
        )
        return replace(self, kv_groups=tuple(kv_groups))

    @property
    def num_blocks(self) -> int:
        """Over all KV groups."""
        return sum(kv_group.num_blocks for kv_group in self.kv_groups)

    @property
    def num_host_blocks(self) -> int:
        """Over all KV groups."""
        return sum(kv_group.num_host_blocks for kv_group in self.kv_groups)

    @property
    def windows(self) -> list[int | None]:
        """Of each KV group, in tokens."""
        return [kv_group.window and kv_group.window.tokens for kv_group in self.kv_groups]

    def block_bytes(self, cache: CacheShape) -> list[int]:
        """Of a block in each KV group: it holds keys and values of the KV group's layers."""
        return [
            self.block_size * sum(cache.token_bytes[layer] for layer in kv_group.layers)
            for kv_group in self.kv_groups
        ]

    def pool_bytes(self, cache: CacheShape) -> int:
        """Of the whole pool on the device."""
        sizes = zip(self.kv_groups, self.block_bytes(cache), strict=True)
        return sum(kv_group.num_blocks * each for kv_group, each in sizes)

    @property
    def is_paged(self) -> bool:
        return self.kv_allocator == "paged"

    def allocator(self) -> KVAllocator:
        """An empty pool."""
        size = self.block_size
        if not self.kv_groups:
            return NoBlocks(size)
        if self.is_paged:
            kv_groups = [
                PagedAllocator(kv_group.num_blocks, size, kv_group.num_host_blocks, kv_group.window)
                for kv_group in self.kv_groups
            ]
            return kv_groups[0] if len(kv_groups) == 1 else LayeredAllocator(kv_groups)
        (kv_group,) = self.kv_groups
        reservation, longest = Reservation(self.kv_allocator), self.max_model_len
        assert longest is not None, "windows need the paged allocator"
        return ContiguousAllocator(
            kv_group.num_blocks, size, reservation, longest, kv_group.num_host_blocks
        )

    def scheduler(self, costs: RecoveryCosts, source: BlockSource | None = None) -> Scheduler:
        """A scheduler over an empty pool. ``source``: what it fetches blocks from, and stores."""
        allocator = self.allocator()
        return Scheduler(
            allocator,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=SchedulingPolicy(self.scheduling_policy),
            preemption=Preemption(allocator, PreemptionMode(self.preemption_mode), costs),
            beyond=Beyond(allocator, source, costs),
            max_num_sessions=self.max_num_sessions,
            max_sessions_per_client=self.max_sessions_per_client,
            ring=self._ring(),
            max_queue_time=self.max_queue_time,
            max_adapters=self.max_loras or None,
            block_events=BlockEvents(allocator) if self.kv_events else None,
            whole_prompts=not self.kv_groups,
        )

    def _ring(self) -> Ring:
        size, windows = self.max_model_len, [kv_group.window for kv_group in self.kv_groups]
        window = windows[0] if windows else None
        if size is None and window is not None:
            size = window.sinks + window.tokens
        return Ring(self.attention_sinks, size)


def _windows(
    config: EngineConfig, cache: CacheShape, longest: int | None
) -> Iterable[tuple[Window | None, tuple[int, ...]]]:
    """The windows that blocks are left behind by, each with its layers."""
    windows = cache.windows
    if config.kv_allocator != "paged":  # regions of consecutive blocks keep every token
        windows = (None,) * len(windows)
    elif config.window is not None:
        windows = (config.window,) * len(windows)
    else:
        windows = windows_in_force(windows, longest)
    for tokens, layers in layers_by_window(windows).items():
        window = None
        if tokens is not None:
            window = Window(tokens, config.max_num_batched_tokens, config.attention_sinks)
        yield window, layers


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
    if config.kv_allocator != "paged":
        if asked:
            raise ConfigError('enable_prefix_caching needs kv_allocator "paged"')
        return False
    return asked is not False
