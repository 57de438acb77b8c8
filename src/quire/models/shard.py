"""Which part of a model one of several ranks holds (tensor parallelism; Shoeybi et al., 2019).

Heads, what is inside of MLPs, and the vocabulary are divided in the order of ranks, one run each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.errors import ConfigError


class Divided(NamedTuple):
    """The counts of a model that ranks divide, by the fields of its config."""

    num_heads: int
    num_kv_heads: int
    vocab_size: int
    inner: Mapping[str, int]  # of MLPs
    has_states: bool = False  # of layers that no ranks divide

    def why_not(self, size: int) -> str | None:
        """The reason why this many ranks cannot divide the model; None: they can."""
        if self.has_states and size > 1:
            return "do not divide layers that keep a state"
        evenly = {"num_attention_heads": self.num_heads, **self.inner}
        for name, count in evenly.items():
            if count % size:
                return f"do not divide {name} ({count:,})"
        if self.num_kv_heads % size and size % self.num_kv_heads:
            return (
                f"neither divide num_key_value_heads ({self.num_kv_heads}) nor are a multiple of it"
            )
        if self.vocab_size < size:
            return f"are more than vocab_size ({self.vocab_size})"
        return None

    def check(self, size: int, source: str) -> None:
        """ConfigError if this many ranks cannot divide the model."""
        fault = self.why_not(size)
        if fault is not None:
            fits = [str(n) for n in range(1, self.num_heads + 1) if self.why_not(n) is None]
            raise ConfigError(
                f"tensor_parallel_size is {size}, but so many ranks {fault} in {source}; "
                f"allowed: {', '.join(fits)}"
            )


@dataclass(frozen=True)
class Shard:
    """The part of a model that rank ``rank`` of ``size`` holds."""

    rank: int = 0
    size: int = 1

    @property
    def is_whole(self) -> bool:
        return self.size == 1

    def run(self, count: int) -> range:
        """The rank's run of ``count``; if it is not even, the first ranks have one more."""
        each, more = divmod(count, self.size)
        first = self.rank * each + min(self.rank, more)
        return range(first, first + each + (self.rank < more))

    def kv_heads(self, count: int) -> range:
        """The heads of keys and values that this rank's queries need.

        Where there are fewer than ranks, several ranks have the same.
        """
        if count % self.size == 0:
            return self.run(count)
        first = self.rank * count // self.size
        return range(first, first + 1)
