"""What an architecture with code of its own tells the loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quire.model.config import ModelConfig
from quire.model.decoder import Decoder
from quire.model.linear import LinearReader
from quire.model.rope import RopeConfig
from quire.model.weights import Weights


class FamilyConfig(Protocol):
    """What is asked of every family's config before weights are read."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer."""
        ...

    @property
    def rope(self) -> RopeConfig | None:
        """None where positions are no rotations."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence, unless ``rope`` stretches."""
        ...


_Config = TypeVar("_Config", bound=FamilyConfig)


@dataclass(frozen=True)
class Family(Generic[_Config]):
    """Architectures whose configs and tensors are read alike."""

    architectures: tuple[str, ...]
    # Raises ModelError where a field is missing, of the wrong type, or contradicts another.
    read: Callable[[ModelConfig], _Config]
    # Takes the family's tensors; raises ModelError as ``Weights.take`` does.
    build: Callable[[_Config, Weights, LinearReader], Decoder]
