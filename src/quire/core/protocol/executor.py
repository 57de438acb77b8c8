"""Who carries steps out: an executor, a step under way, whose its chunks are, where time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from quire.core.protocol.step import Opened, Step, StepResult

_UNTIMED = nullcontext()
Listener = Callable[[str, float, float], None]
"""It is given a part's name, its begin and its end, in seconds on the monotonic clock."""


class PendingStep:
    """A step that has been begun, and its result as soon as somebody asks for it.

    compute: waits for the step's end; called once, of one step after the other.
    """

    def __init__(self, step: Step, compute: Callable[[], StepResult]) -> None:
        self.step = step
        self._compute = compute
        self._result: StepResult | None = None
        self._error: BaseException | None = None

    @classmethod
    def failed(cls, step: Step, error: BaseException) -> PendingStep:
        """One that could not be begun."""
        pending = cls(step, StepResult)
        pending._error = error
        return pending

    @property
    def has_failed(self) -> bool:
        """Whether it is known to have failed."""
        return self._error is not None

    def wait(self) -> None:
        """Until its result is there, or an error in its place."""
        if self._result is None and self._error is None:
            try:
                self._result = self._compute()
            except BaseException as error:  # an interrupt too: nobody knows how far it came
                self._error = error

    def collect(self) -> StepResult:
        """What it gave; raises what made it fail. Waits for it."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Executor(Protocol):
    """Carries out steps on some device.

    Steps take effect in the order in which they are submitted, moves included: one that is
    submitted while another is under way reads what that one writes, and writes only where that one
    has read.
    """

    def submit(self, step: Step) -> PendingStep:
        """Begin a step: one that was planned ahead after the one under way, others after none.

        Where nothing but the calling thread computes, the step is done when this returns.
        """
        ...


class Roster:
    """The sequences that have been opened or forked and not been closed, and whose they are."""

    def __init__(self) -> None:
        self._known: dict[int, Opened] = {}

    def follow(self, step: Step) -> list[Opened]:
        """To be done first of all with every step: whose its chunks are.

        That holds for as long as the step is under way, even of those that are closed meanwhile.
        """
        known = self._known
        for opened in step.opened:
            known[opened.seq_id] = opened
        for parent, child, branch in step.forked:
            known[child] = known[parent]._replace(seq_id=child, branch=branch)
        for seq_id in step.closed:
            del known[seq_id]
        return [known[chunk.seq_id] for chunk in step.chunks]

    def __len__(self) -> int:
        return len(self._known)


class Parts(dict[str, AbstractContextManager[None]]):
    """A step's parts by name, each to be entered: they are timed while somebody listens."""

    listener: Listener | None = None

    def listen(self, listener: Listener | None) -> None:
        """Tell it of all parts from now on; None: nobody. Parts may hold others."""
        self.listener = listener
        self.clear()

    def __missing__(self, name: str) -> AbstractContextManager[None]:
        part = self[name] = _UNTIMED if self.listener is None else _Timed(name, self.listener)
        return part


class _Timed(AbstractContextManager[None]):
    """One part, which may come again. A generator would take three times as long."""

    __slots__ = ("_begin", "_listener", "_name")

    def __init__(self, name: str, listener: Listener) -> None:
        self._name, self._listener, self._begin = name, listener, 0.0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._listener(self._name, self._begin, time.monotonic())
