"""A prompt's blocks on their way from who has computed it to who goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.memory import BlockHash
from quire.simulation.fleet.flight import Flight
from quire.simulation.fleet.replica import Replica
from quire.simulation.fleet.transfer import Links, TransferCosts
from quire.workload import block_names


@dataclass(frozen=True)
class Sent:
    """times_lost and target_life are as they were: who has died since gets nothing."""

    flight: Flight
    source: Replica
    target: Replica
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


class Handover:
    """Sends blocks, over links that are busy for so long."""

    def __init__(self, costs: TransferCosts) -> None:
        self._links = Links(costs)

    def begin(
        self, flight: Flight, source: Replica, life: int, target: Replica, now: float
    ) -> Sent:
        """The prompt's full blocks that the target does not have. It counts as sent there."""
        target.flights[flight.number] = flight
        trace, limits = flight.trace, target.limits
        own = f"own {flight.number}"
        names = block_names(trace.content, trace.prompt_tokens, limits.block_size, own)
        target.engine.catch_up(now)
        locate = target.engine.scheduler.allocator.locate
        alive = source.is_up and source.life == life
        missing = [name for name in names if alive and locate(name) is None]
        size = len(missing) * sum(limits.block_bytes(target.kind.deployment.cache))
        ends = [(one.slot, one.kind.deployment) for one in (source, target)]
        end = self._links.send(ends[0], ends[1], size, now)
        return Sent(
            flight, source, target, missing, size, end, life, target.life, flight.times_lost
        )
