"""What the engine has done since it started, in counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.memory import Usage
from quire.protocol import Step


@dataclass
class EngineStats:
    """Counters of work, and the KV pool's slots integrated over the time they were measured."""

    num_steps: int = 0
    num_tokens: int = 0  # computed, prompt and output
    busy_seconds: float = 0.0
    num_failed_swaps: int = 0  # blocks that did not get to the host, or not back as they were
    num_faults: int = 0  # that memory's audits have found, and put right
    slot_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(Usage._fields, 0.0)
    )

    def observe_step(self, step: Step, seconds: float) -> None:
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.busy_seconds += seconds
        for kind, slots in step.usage._asdict().items():
            self.slot_seconds[kind] += slots * seconds

    @property
    def kv_efficiency(self) -> float | None:
        """Share of the KV memory taken from the pool that held tokens' states, over time.

        The measure of the PagedAttention paper's figure 2: what is reserved for later or lost to
        fragmentation counts as waste.
        """
        slots = self.slot_seconds
        taken = slots["used"] + slots["reserved"] + slots["internal"] + slots["external"]
        return slots["used"] / taken if taken else None
