"""The other ranks, as rank 0 has them: heard, watched, and ended."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from quire.core.errors import ConfigError, EngineError, ModelError, QuireError, RankError
from quire.engine.assembly.ranks.messages import (
    MOST,
    OF_A_RANK,
    Beat,
    End,
    OfStep,
    RankFailed,
    RankRefused,
)
from quire.engine.assembly.ranks.processes import RankProcess, end_all
from quire.engine.capabilities import OtherRanks
from quire.kernels.ranks import RankGroup
from quire.kernels.transport import Connection, PeerError

logger = logging.getLogger(__name__)

STARTING = 600.0  # seconds in which a rank must be there; it may be started by hand
_EXPLAINED = 1.0  # seconds to wait for the reason why another rank is gone
_REFUSALS: dict[str, type[QuireError]] = {
    "ConfigError": ConfigError,
    "ModelError": ModelError,
    "EngineError": EngineError,
}
Failed = Callable[["Member", QuireError], None]
Hear = Callable[[Any], None]
_Answer = TypeVar("_Answer", bound=Struct)


class Member:
    """Another rank: the connection with it, and its process if that is rank 0's own.

    silence: the most seconds that it may say nothing, once it has said something.
    place: see ``facts.place``. last: seconds for what it has to do when it is told to end.
    """

    last = 0.0

    def __init__(
        self,
        rank: int,
        connection: Connection,
        process: RankProcess | None,
        silence: float,
        failed: Failed,
        place: str,
        heard_by: dict[type[Struct], Hear],
    ) -> None:
        """heard_by: by kind, what is called in the rank's thread with messages that come by
        themselves.
        """
        self.rank, self.connection, self.process, self.place = rank, connection, process, place
        self._heard_by = heard_by
        self._silence = silence
        self._failed = weakref.WeakMethod(failed)
        self._heard: SimpleQueue[Struct | None] = SimpleQueue()
        self.inbox: SimpleQueue[bytes | None] = SimpleQueue()  # what it answers in steps
        threading.Thread(target=self._watch, name=f"quire-rank-{rank}", daemon=True).start()

    def send(self, message: Struct, payload: bytes = b"") -> None:
        """Send a message, unless the rank is gone: its own thread finds out why."""
        with contextlib.suppress(PeerError):
            self.connection.send(message, payload)

    def answer(self, kind: type[_Answer]) -> _Answer | None:
        """What it says next; None: it has failed."""
        message = self._heard.get()
        if message is None or isinstance(message, kind):
            return message
        said, name = type(message).__name__, kind.__name__
        raise RankError(f"rank {self.rank} said {said} instead of {name}")

    def give_up(self) -> None:
        """End all waits for answers."""
        self._heard.put(None)

    def _watch(self) -> None:
        """Receive its messages until it is gone."""
        seconds = STARTING
        try:
            while True:
                message, payload = self.connection.receive_along(OF_A_RANK, MOST, seconds)
                seconds = self._silence
                if isinstance(message, RankFailed):
                    refusal = _REFUSALS.get(message.kind, RankError)
                    self._tell(refusal(f"rank {self.rank}: {message.text}"))
                    return
                if isinstance(message, OfStep):
                    self.inbox.put(bytes(payload))
                elif type(message) in self._heard_by:
                    self._heard_by[type(message)](message)
                elif not isinstance(message, Beat):
                    self._heard.put(message)
        except PeerError as error:
            gone = "closed" in str(error) and self.process is not None
            why = self.process.why_it_ended(_EXPLAINED) if gone and self.process else None
            self._tell(RankError(f"rank {self.rank}{self._where()} is gone: {why or error}"))

    def _where(self) -> str:
        peer = self.connection.peer
        return f" at {peer}" if self.process is None and peer else ""

    def _tell(self, error: QuireError) -> None:
        failed = self._failed()
        if failed is not None:
            failed(self, error)


class Team(OtherRanks):
    """All other ranks. Once one of them has failed, all are ended, and it is of no use any more."""

    def __init__(self, size: int, silence: float, last: float = 0.0) -> None:
        """silence, last: see ``Member``."""
        self.size = size
        self.silence, self._last = silence, last
        self.members: list[Member] = []
        self.error: QuireError | None = None  # why it is of no use
        self.group: RankGroup | None = None
        self.host: str | None = None  # where others can reach rank 0
        self._arrive: Callable[[], None] = lambda: None
        self._heard_by: dict[type[Struct], Hear] = {}
        self._tell: list[Callable[[RankError], None]] = []
        self._failing = threading.Lock()
        self._ending = contextlib.ExitStack()  # what else is to be done at the end
        self._end = weakref.finalize(self, _end, self.members, self._ending)

    def add(
        self,
        rank: int,
        connection: Connection,
        place: str,
        process: RankProcess | None = None,
    ) -> None:
        failed = self._member_failed
        member = Member(rank, connection, process, self.silence, failed, place, self._heard_by)
        member.last = self._last
        self.members.append(member)
        self.members.sort(key=lambda member: member.rank)

    def awaits(self, host: str, arrive: Callable[[], None]) -> None:
        """host: where ranks that are not there yet come to. arrive: waits for them."""
        self.host, self._arrive = host, arrive

    def arrive(self) -> None:
        """Wait until all are there. RankError: they do not come."""
        self._arrive()

    def at_end(self, act: Callable[[], object]) -> None:
        self._ending.callback(act)

    def say(self, message: Struct, payload: bytes = b"") -> None:
        """Send a message to all."""
        for member in self.members:
            member.send(message, payload)

    def answers(self, kind: type[_Answer]) -> list[_Answer]:
        """The next messages of all, in the order of ranks.

        Raises what one of them has refused, or a RankError.
        """
        found = [member.answer(kind) for member in self.members]
        if self.error is not None:
            raise self.error
        return [message for message in found if message is not None]

    def hear_of(self, kind: type[_Answer], act: Callable[[_Answer], None]) -> None:
        """Call this with messages of a kind that nobody waits for in turn, in the thread that
        receives them.
        """
        self._heard_by[kind] = act

    def refuse(self, member: Member, why: str) -> None:
        """Raise a ConfigError here, and at the rank."""
        member.send(RankRefused(why))
        raise ConfigError(f"rank {member.rank}{member._where()} cannot join: {why}")

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    # -- while it computes -----------------------------------------------------------------------

    def begin(self, group: RankGroup) -> None:
        """Let waits for other ranks end from now on when a rank fails."""
        self.group = group
        self.check()

    def watch(self, tell: Callable[[RankError], None]) -> None:
        """Have it told, in whatever thread, when a rank has failed; at once if one has."""
        with self._failing:
            self._tell.append(tell)
            error = self.error
        if error is not None:
            tell(_as_rank_error(error))

    def why(self, error: RankError) -> RankError:
        """A step's error, with the reason that the team has found."""
        deadline = time.monotonic() + _EXPLAINED
        while self.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._fail(error)
        assert self.error is not None
        return _as_rank_error(self.error)

    def close(self) -> None:
        """End all ranks that rank 0 has started, and let go of the others."""
        self._end()

    def _member_failed(self, member: Member, error: QuireError) -> None:
        if self._end.alive:  # else it was to end
            self._fail(error)

    def _fail(self, error: QuireError) -> None:
        with self._failing:
            if self.error is not None:
                return
            self.error = error
            told = list(self._tell)
        if self.group is not None:
            self.group.abort(str(error))
        for member in self.members:
            member.give_up()
            member.last = 0.0  # it may hang
        for tell in told:
            tell(_as_rank_error(error))
        for member in self.members:
            member.connection.close()


def _as_rank_error(error: QuireError) -> RankError:
    return error if isinstance(error, RankError) else RankError(str(error))


def _end(members: Sequence[Member], ending: contextlib.ExitStack) -> None:
    for member in members:
        member.send(End())
        member.connection.close()
    processes = [member.process for member in members if member.process is not None]
    end_all(processes, max((member.last for member in members), default=0.0))
    ending.close()
