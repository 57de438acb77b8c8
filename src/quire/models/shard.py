"""Which part of a model one of several ranks holds (tensor parallelism; Shoeybi et al., 2019).

Heads, what is inside of MLPs, and the vocabulary are divided in the order of ranks, one run each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.models.parts import ALL


class DividedStates(NamedTuple):
    """What ranks divide of layers that keep a state."""

    heads: int  # of values; of a convolution, channels
    key_heads: int = 0
    together: bool = False  # values of one key head's are normalised together
    tiled: bool = False  # heads with one key are not neighbours

    def why_not(self, size: int) -> str | None:
        if self.heads % size:
            return f"do not divide the heads of its states ({self.heads:,})"
        if not self.key_heads:
            return None
        if self.tiled and size > 1 and self.heads > self.key_heads:
            return "do not divide states in the order that GGUF files have"
        if self.key_heads % size and (self.together or size % self.key_heads):
            return f"do not divide the key heads of its states ({self.key_heads:,})"
        return None


class Divided(NamedTuple):
    """The counts of a model that ranks divide, by the fields of its config."""

    num_heads: int
    num_kv_heads: int
    vocab_size: int
    inner: Mapping[str, int]  # of MLPs
    states: DividedStates | None = None
    other_kv_heads: tuple[int, ...] = ()  # of single layers

    def why_not(self, size: int) -> str | None:
        """The reason why this many ranks cannot divide the model; None: they can."""
        evenly = {"num_attention_heads": self.num_heads, **self.inner}
        for name, count in evenly.items():
            if count % size:
                return f"do not divide {name} ({count:,})"
        for count in (self.num_kv_heads, *self.other_kv_heads):
            if count % size and size % count:
                return f"neither divide num_key_value_heads ({count}) nor are a multiple of it"
        if self.vocab_size < size:
            return f"are more than vocab_size ({self.vocab_size})"
        return None if self.states is None else self.states.why_not(size)

    def check(self, size: int, source: str) -> None:
        """ConfigError if this many ranks cannot divide the model."""
        fault = self.why_not(size)
        if fault is not None:
            most = self.num_heads or (self.states.heads if self.states is not None else 1)
            fits = [str(n) for n in range(1, most + 1) if self.why_not(n) is None]
            raise ConfigError(
                f"tensor_parallel_size is {size}, but that many ranks {fault} in {source}; "
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

    def check(self, count: int, what: str, name: str) -> None:
        """ConfigError unless ranks divide ``count``."""
        if count % self.size:
            raise ConfigError(
                f"tensor_parallel_size is {self.size}, but that many ranks do not divide the "
                f"{count:,} {what} of {name}"
            )

    def run(self, count: int) -> range:
        """The rank's run of ``count``; if it is not even, the first ranks have one more."""
        each, more = divmod(count, self.size)
        first = self.rank * each + min(self.rank, more)
        return range(first, first + each + (self.rank < more))

    def columns(self, count: int, width: int = 1) -> slice:
        """The rank's inputs of a projection, of ``count`` of that width that ranks divide."""
        held = self.run(count)
        return ALL if self.is_whole else slice(held.start * width, held.stop * width)

    def kv_heads(self, count: int) -> range:
        """The heads of keys and values that this rank's queries need.

        Where there are fewer than ranks, several ranks have the same.
        """
        if count % self.size == 0:
            return self.run(count)
        first = self.rank * count // self.size
        return range(first, first + 1)
