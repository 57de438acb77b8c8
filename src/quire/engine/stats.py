"""What the engine has done since it started, in counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.memory import Usage
from quire.core.protocol import Step

_POSITIONS = 16  # of drafts; more are counted where there are more


@dataclass
class EngineStats:
    """Counters of work, and the KV pool's slots integrated over the time they were measured."""

    num_steps: int = 0
    num_tokens: int = 0  # computed, prompt and output
    busy_seconds: float = 0.0
    num_failed_swaps: int = 0  # blocks that did not get to the host, or not back as they were
    num_faults: int = 0  # that memory's audits have found, and put right
    num_drafts: int = 0  # times that a sequence was drafted for in a step
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # of them, that were what the model says
    accepted_by_position: list[int] = field(default_factory=lambda: [0] * _POSITIONS)
    slot_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(Usage._fields, 0.0)
    )

    def observe_step(self, step: Step, seconds: float) -> None:
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.busy_seconds += seconds
        for kind, slots in step.usage._asdict().items():
            self.slot_seconds[kind] += slots * seconds

    def observe_drafts(self, drafted: int, accepted: int) -> None:
        """A sequence was drafted for in a step, and the first ``accepted`` drafts were right."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        by_position = self.accepted_by_position
        by_position += [0] * (accepted - len(by_position))
        for position in range(accepted):
            by_position[position] += 1

    @property
    def kv_efficiency(self) -> float | None:
        """Share of the KV memory taken from the pool that held tokens' states, over time.

        The measure of the PagedAttention paper's figure 2: what is reserved for later or lost to
        fragmentation counts as waste.
        """
        slots = self.slot_seconds
        taken = slots["used"] + slots["reserved"] + slots["internal"] + slots["external"]
        return slots["used"] / taken if taken else None
