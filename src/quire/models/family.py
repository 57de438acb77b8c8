"""An architecture with code of its own, as the loader sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from quire.models.blueprint import Mixture
from quire.models.config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.linear import LinearReader
from quire.models.rope import RopeConfig
from quire.models.shape import Positions
from quire.models.shard import Divided
from quire.models.weights import Weights


class FamilyConfig(Protocol):
    """The facts that every family's config has, known before weights are read."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer."""
        ...

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotations of positions; None: positions are not rotations."""
        ...

    @property
    def positions(self) -> Positions:
        """How long a sequence may be."""
        ...

    @property
    def mixture(self) -> Mixture | None:
        """The experts of its MLPs; None: it has none."""
        ...

    @property
    def divided(self) -> Divided:
        """What ranks divide among them."""
        ...


_Config = TypeVar("_Config", bound=FamilyConfig)


@dataclass(frozen=True)
class Family(Generic[_Config]):
    """Architectures whose configs and tensors are read in the same way."""

    architectures: tuple[str, ...]
    # Raises ModelError where a field is missing, of the wrong type, or contradicts another.
    read: Callable[[ModelConfig], _Config]
    # Takes the family's tensors; raises ModelError as ``Weights.take`` does.
    build: Callable[[_Config, Weights, LinearReader], Decoder]
    # Fields by architecture that say something which only transformers computes.
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def lacks(self, config: ModelConfig) -> str | None:
        """A field that makes this config one for transformers."""
        fields = config.fields
        for name in self.foreign.get(config.architecture, ()):
            if name in fields and fields.values[name] is not False:
                return name
        return None
