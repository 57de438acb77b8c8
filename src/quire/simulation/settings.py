"""How a simulated engine is set up, in the names of the real one's settings."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ConfigError
from quire.memory import ContiguousAllocator, KVAllocator, PagedAllocator, Reservation
from quire.scheduling import Preemption, PreemptionMode, RecoveryCosts, Scheduler


@dataclass(frozen=True)
class Settings:
    """The pool and the scheduler's limits; tokens, sequences and blocks."""

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_allocator: str = "paged"  # or max, pow2, oracle
    enable_prefix_caching: bool = False
    preemption_mode: str = "recompute"  # or swap, auto
    num_host_blocks: int = 0
    seed: int = 0  # of the beams' candidates

    def __post_init__(self) -> None:
        for name in (
            "num_blocks", "max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens"
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_allocator not in ("paged", *(one.value for one in Reservation)):
            raise ConfigError(
                f"kv_allocator must be paged, max, pow2 or oracle; got {self.kv_allocator!r}"
            )
        if self.preemption_mode not in [mode.value for mode in PreemptionMode]:
            raise ConfigError(
                f"preemption_mode must be auto, swap or recompute; got {self.preemption_mode!r}"
            )
        if self.preemption_mode == "swap" and not self.num_host_blocks:
            raise ConfigError('preemption_mode "swap" needs swap space')

    def scheduler(self, costs: RecoveryCosts) -> Scheduler:
        """The engine's own scheduler, over the engine's own allocator."""
        allocator = self._allocator()
        return Scheduler(
            allocator,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=self.names_blocks,
            preemption=Preemption(allocator, PreemptionMode(self.preemption_mode), costs),
        )

    @property
    def names_blocks(self) -> bool:
        return self.enable_prefix_caching and self.kv_allocator == "paged"

    def _allocator(self) -> KVAllocator:
        if self.kv_allocator == "paged":
            return PagedAllocator(self.num_blocks, self.block_size, self.num_host_blocks)
        return ContiguousAllocator(
            self.num_blocks,
            self.block_size,
            Reservation(self.kv_allocator),
            self.max_model_len,
            self.num_host_blocks,
        )
