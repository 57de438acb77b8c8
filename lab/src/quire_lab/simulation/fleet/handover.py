"""A prompt's blocks on their way from the replica that computed it to the one that continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.memory import BlockHash
from quire.execution.kv_bytes import bytes_of_blocks
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.replica import SimulatedReplica
from quire_lab.simulation.fleet.transfer import Links, TransferCosts
from quire_lab.workload.clipping import block_names


@dataclass(frozen=True)
class Sent:
    """times_lost and target_life as they were: a replica that has died since gets nothing."""

    flight: Flight
    source: SimulatedReplica
    target: SimulatedReplica
    names: Sequence[BlockHash]
    num_bytes: int
    end: float
    source_life: int
    target_life: int
    times_lost: int

    def arrives(self) -> bool:
        """Whether the target still waits for it. If the source has died, it has waited in vain,
        and computes the prompt itself."""
        flight, source, target = self.flight, self.source, self.target
        if flight.times_lost != self.times_lost or target.life != self.target_life:
            return False
        if source.is_up and source.life == self.source_life and target.source is not None:
            target.source.add(self.names)
            flight.names = self.names
        return True


class BlockHandover:
    """Sends blocks, over links that are busy meanwhile."""

    def __init__(self, costs: TransferCosts) -> None:
        self._links = Links(costs)

    def missing(self, flight: Flight, target: SimulatedReplica, now: float) -> list[BlockHash]:
        """Names of the prompt's full blocks that the target's pool does not have."""
        trace, own = flight.trace, f"own {flight.number}"
        size = target.limits.block_size
        names = block_names(trace.content, trace.prompt_tokens, size, own)
        target.engine.catch_up(now)
        contents = target.engine.scheduler.allocator.contents
        return [name for name in names if contents is None or contents.locate(name) is None]

    def begin(
        self,
        flight: Flight,
        source: SimulatedReplica,
        life: int,
        target: SimulatedReplica,
        names: Sequence[BlockHash],
        now: float,
    ) -> Sent:
        """Send these blocks, except those that have come already for another request."""
        has, limits = target.source, target.limits
        new = [name for name in names if has is None or not has.has(name)]
        size = len(new) * sum(bytes_of_blocks(limits, target.kind.deployment.cache))
        ends = [(one.slot, one.kind.deployment) for one in (source, target)]
        end = self._links.send(ends[0], ends[1], size, now)
        return Sent(flight, source, target, names, size, end, life, target.life, flight.times_lost)
