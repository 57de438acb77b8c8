"""What an engine can do beside serving texts hooks into its loop here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from quire.core.errors import QuireError
from quire.core.protocol import Outcome, Request, Step
from quire.core.scheduling.scheduler import Scheduler
from quire.core.scheduling.session import Session

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

Unready = tuple[Callable[[Request], bool], QuireError]
"""Which requests cannot go on, and the error with which they end."""


class Capability:
    """Does nothing; one that does something overrides the hooks that it needs.

    An engine calls each hook in its own thread.
    """

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        """No request and no session lives: the engine begins, or begins anew."""

    def request_begins(self, request: Request) -> None:
        """It is about to be queued. A RequestError refuses it."""

    def request_ends(self, request: Request) -> None:
        """It has ended, or was refused."""

    def session_begins(self, session: Session) -> None:
        """It has been opened. A RequestError closes it at once."""

    def session_ends(self, session: Session) -> None:
        """It is closed."""

    def prepare(self, scheduler: Scheduler) -> Unready | None:
        """Make ready what the next step needs, before it is planned; if that has failed: for whom.

        Not called for a step that is begun while another is under way.
        """

    def recall(self, scheduler: Scheduler) -> None:
        """Requests sit steps out: tell the scheduler which of them have to, still."""

    def propose(self, scheduler: Scheduler) -> None:
        """Give the scheduler what it may add to the step, after that."""

    def rest(self) -> None:
        """The step has nothing to compute: wait a moment for what is being made ready."""

    def waits(self, scheduler: Scheduler) -> bool:
        """Whether the next step is better planned when the one under way is over."""
        return False

    def observe(self, step: Step, outcomes: Mapping[int, Outcome], seconds: float) -> None:
        """Learn what a step gave, and how long it took."""

    def contents_change(self, scheduler: Scheduler) -> None:
        """Blocks may have entered or left the prefix cache."""

    def close(self) -> None:
        """The engine ends."""


class Hooks:
    """For each hook, the methods of those capabilities that override it, in their order.

    A hook that nobody overrides costs no call.
    """

    def __init__(self, capabilities: Iterable[Capability | None] = ()) -> None:
        there = [one for one in capabilities if one is not None]
        self.engine_begins = _overriding(there, Capability.engine_begins)
        self.request_begins = _overriding(there, Capability.request_begins)
        self.request_ends = _overriding(there, Capability.request_ends)
        self.session_begins = _overriding(there, Capability.session_begins)
        self.session_ends = _overriding(there, Capability.session_ends)
        self.prepare = _overriding(there, Capability.prepare)
        self.recall = _overriding(there, Capability.recall)
        self.propose = _overriding(there, Capability.propose)
        self.rest = _overriding(there, Capability.rest)
        self.waits = _overriding(there, Capability.waits)
        self.observe = _overriding(there, Capability.observe)
        self.contents_change = _overriding(there, Capability.contents_change)
        self.close = _overriding(there, Capability.close)


def _overriding(
    capabilities: Iterable[Capability], hook: Callable[Concatenate[Capability, _Given], _Answer]
) -> tuple[Callable[_Given, _Answer], ...]:
    name = hook.__name__
    return tuple(getattr(one, name) for one in capabilities if getattr(type(one), name) is not hook)
