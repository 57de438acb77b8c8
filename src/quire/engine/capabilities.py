"""What an engine can do beside serving texts: each capability by name, and the hooks it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from quire.blocks.events import EventPublisher
from quire.blocks.store import DiskStore, Tiers
from quire.blocks.transfer import BlockFetcher, BlockServer
from quire.capabilities.adapters.served import Adapters
from quire.capabilities.speculation import Speculation
from quire.core.errors import QuireError
from quire.core.protocol import Outcome, Request, Step
from quire.core.scheduling import Scheduler, Session
from quire.engine.others import OtherRanks


class Capabilities(NamedTuple):
    """Those that an engine is given, in the order in which their hooks are called; None: it lacks.

    A new one is a field here. It has methods with the names of the ``Hooks`` that it needs.
    """

    adapters: Adapters | None = None
    speculation: Speculation | None = None
    transfer: BlockServer | BlockFetcher | None = None
    store: DiskStore | Tiers | None = None
    events: EventPublisher | None = None
    others: OtherRanks | None = None


class Hooks(NamedTuple):
    """When an engine calls its capabilities, in its own thread.

    Each hook holds the methods of that name which capabilities have. One that none has is empty,
    and costs no call.
    """

    # A request is about to be queued; a RequestError refuses it. It has ended, or was refused.
    request_begins: tuple[Callable[[Request], None], ...] = ()
    request_ends: tuple[Callable[[Request], None], ...] = ()
    # A session has been opened; a RequestError closes it at once. It is closed.
    session_begins: tuple[Callable[[Session], None], ...] = ()
    session_ends: tuple[Callable[[Session], None], ...] = ()
    # Before a step is planned: make ready what it needs. If that has failed: for which requests,
    # and the error with which they end.
    prepare: tuple[
        Callable[[Scheduler], tuple[Callable[[Request], bool], QuireError] | None], ...
    ] = ()
    # After that: give the scheduler what it may add to the step.
    propose: tuple[Callable[[Scheduler], None], ...] = ()
    # The step has nothing to compute: wait a moment for what is being made ready.
    rest: tuple[Callable[[], None], ...] = ()
    # Whether the next step is better planned when the one under way is over.
    waits: tuple[Callable[[Scheduler], bool], ...] = ()
    # What a step gave, and the seconds that it took.
    observe: tuple[Callable[[Step, Mapping[int, Outcome], float], None], ...] = ()
    # The engine ends.
    close: tuple[Callable[[], None], ...] = ()

    @classmethod
    def of(cls, capabilities: Iterable[object]) -> Hooks:
        """Those that these have, in their order."""
        there = [one for one in capabilities if one is not None]
        return cls(
            *(
                tuple(getattr(one, name) for one in there if hasattr(one, name))
                for name in cls._fields
            )
        )
