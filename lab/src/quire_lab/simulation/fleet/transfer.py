"""The transfer of blocks from the replica that computed a prompt to the one that continues it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire.core.memory import BlockHash, Content
from quire_lab.simulation.planning.deployment import Deployment


@dataclass(frozen=True)
class TransferCosts:
    """bandwidth: bytes a second, of each replica's way out and way in; None: of its machines'
    network. latency: seconds before the first byte: the pairing's round trips."""

    bandwidth: float | None = None
    latency: float = 0.001

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ConfigError("transfer_gb must be above 0")
        if not 0 <= self.latency <= 60:
            raise ConfigError(f"transfer_ms must be from 0 to 60,000, got {self.latency * 1e3:g}")

    def of(self, deployment: Deployment) -> float:
        """Bytes a second to or from such a replica."""
        own = deployment.machine.network_bandwidth * deployment.tensor_parallel
        return self.bandwidth or own


class Links:
    """Each replica's way out and way in: what goes over one goes one after the other."""

    def __init__(self, costs: TransferCosts) -> None:
        self._costs = costs
        self._free: dict[tuple[int, bool], float] = {}  # by slot and direction: when it is

    def send(
        self, source: tuple[int, Deployment], target: tuple[int, Deployment], size: int, now: float
    ) -> float:
        """When this many bytes arrive, if they can be sent from ``now`` on."""
        out, into = (source[0], True), (target[0], False)
        start = max(now, self._free.get(out, 0.0), self._free.get(into, 0.0))
        bandwidth = min(self._costs.of(source[1]), self._costs.of(target[1]))
        end = start + self._costs.latency + size / bandwidth
        self._free[out] = self._free[into] = end
        return end


class Delivered:
    """A decode engine's source: what has been sent to it, until its request has ended."""

    def __init__(self) -> None:
        self._names: Counter[BlockHash] = Counter()

    def add(self, names: Iterable[BlockHash]) -> None:
        self._names.update(names)

    def remove(self, names: Iterable[BlockHash]) -> None:
        self._names.subtract(names)
        for name in names:
            if not self._names[name]:
                del self._names[name]

    def has(self, name: BlockHash) -> bool:
        return name in self._names

    def used(self, names: Iterable[BlockHash]) -> None:
        """Sent blocks stay until their request has ended, used or not."""

    def clear(self) -> None:
        self._names.clear()

    def room(self) -> int:
        """None: blocks that are computed here are only kept in the pool."""
        return 0

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        raise NotImplementedError("nothing is carried out")

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        raise NotImplementedError("nothing is carried out")


class HandedOver(Delivered):
    """A prefill engine's source: it takes all, in the step after the one that has computed it."""

    def room(self) -> int:
        return 1 << 30
