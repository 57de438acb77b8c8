"""What an engine can do beside serving texts: each capability by name, and how they begin anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from quire.blocks.events import EventPublisher
from quire.blocks.store import Store
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.capabilities.adapters.served import Adapters
from quire.capabilities.beams import Beams
from quire.capabilities.grammar import Grammars
from quire.capabilities.misses import MissFinder
from quire.capabilities.sessions import SessionManager
from quire.capabilities.speculation import Speculation, speculation_of
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import RankError
from quire.core.scheduling import Capability, Scheduler


class OtherRanks(Capability, ABC):
    """Of ``size`` ranks, those beside the one whose engine it is.

    When one of them has failed the engine's steps raise a RankError, and it is of no use any more.
    """

    size: int

    @abstractmethod
    def watch(self, tell: Callable[[RankError], None]) -> None:
        """Have it told, in whatever thread, when a rank has failed; at once if one has."""


class Capabilities(NamedTuple):
    """Those that an engine is given, in the order in which their hooks are called; None: it lacks.

    A new one is a field here, of a class that overrides the hooks of ``Capability`` that it needs.
    """

    sessions: SessionManager
    adapters: Adapters | None = None
    speculation: Speculation | None = None
    transfer: BlockServer | BlockFetcher | None = None
    store: Store | None = None
    events: EventPublisher | None = None
    others: OtherRanks | None = None
    grammars: Grammars | None = None
    misses: MissFinder | None = None
    beams: Beams = Beams()  # which every engine has


class Forgetful(Protocol):
    """An executor that can begin anew."""

    def forget(self) -> None:
        """Forget all sequences."""
        ...


def renewal(
    executor: Forgetful,
    schedule: Callable[[], Scheduler],
    speculation: SpeculativeConfig | None = None,
) -> Callable[[Capabilities], tuple[Scheduler, Capabilities]]:
    """See ``ExecutorTraits.afresh``. schedule: makes a scheduler over an empty pool."""

    def afresh(capabilities: Capabilities) -> tuple[Scheduler, Capabilities]:
        if capabilities.others is not None:
            raise RankError("a step was interrupted, and other ranks are still computing it")
        executor.forget()
        again = capabilities.speculation and speculation_of(speculation)
        return schedule(), capabilities._replace(speculation=again)

    return afresh
