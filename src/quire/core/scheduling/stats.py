"""What the scheduler has done since it started, in counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SchedulerStats:
    """Decisions by verdict, and where the tokens of prompts were found or missed.

    Prompts are looked up in the prefix cache when they are first admitted. Of
    ``prefix_queries`` tokens, ``prefix_hits`` were there; ``prefix_fetched`` were fetched from
    beyond the pool; ``prefix_evicted`` had been there, until their blocks were needed;
    ``prefix_tails`` stood in a prompt's last, partly filled block, which is never kept. The rest
    was new.
    """

    decisions: Counter[str] = field(default_factory=Counter)
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_fetched: int = 0
    prefix_evicted: int = 0
    prefix_tails: int = 0

    @property
    def num_preemptions(self) -> int:
        return self.decisions["swap"] + self.decisions["recompute"]
