"""The other ranks, as rank 0 has them: asked, watched, and ended."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from quire.core.errors import ConfigError, EngineError, ModelError, QuireError, RankError
from quire.engine.assembly.ranks.line import Line, Message
from quire.engine.assembly.ranks.processes import RankProcess, end_all
from quire.engine.capabilities import OtherRanks
from quire.kernels.ranks import RankGroup

logger = logging.getLogger(__name__)

STARTING = 600.0  # seconds in which a rank must be there; it may be started by hand
_EXPLAINED = 1.0  # seconds to wait for the reason why another rank is gone
_REFUSALS: dict[str, type[QuireError]] = {
    "ConfigError": ConfigError,
    "ModelError": ModelError,
    "EngineError": EngineError,
}
Failed = Callable[["Member", QuireError], None]


class Member:
    """Another rank: its line, and its process if that is rank 0's own.

    silence: the most seconds that it may say nothing, once it has said something.
    place: see ``facts.place``. last: seconds for what it has to do when it is told to end.
    """

    last = 0.0

    def __init__(
        self,
        rank: int,
        line: Line,
        process: RankProcess | None,
        silence: float,
        failed: Failed,
        place: str,
        told: Mapping[str, Callable[[Message], None]] = MappingProxyType({}),
    ) -> None:
        """told: by kind, who is told in its thread of what it says unasked."""
        self.rank, self.line, self.process, self.place = rank, line, process, place
        self._told = told
        self._silence = silence
        self._failed = weakref.WeakMethod(failed)
        self._heard: SimpleQueue[Message | None] = SimpleQueue()
        threading.Thread(target=self._watch, name=f"quire-rank-{rank}", daemon=True).start()

    def answer(self, kind: str) -> Message | None:
        """What it says next; None: it has failed."""
        message = self._heard.get()
        if message is not None and message["kind"] != kind:
            raise RankError(f"rank {self.rank} said {message['kind']!r} instead of {kind!r}")
        return message

    def give_up(self) -> None:
        """Whoever waits for an answer need not any more."""
        self._heard.put(None)

    def _watch(self) -> None:
        """Hear it, until it is gone."""
        seconds = STARTING
        try:
            while True:
                message = self.line.receive(seconds)
                seconds = self._silence
                if message["kind"] == "error":
                    refusal = _REFUSALS.get(message.get("type", ""), RankError)
                    self._tell(refusal(f"rank {self.rank}: {message.get('text')}"))
                    return
                if message["kind"] in self._told:
                    self._told[message["kind"]](message)
                elif message["kind"] != "beat":
                    self._heard.put(message)
        except RankError as error:
            gone = "closed" in str(error) and self.process is not None
            why = self.process.why_it_ended(_EXPLAINED) if gone and self.process else None
            self._tell(RankError(f"rank {self.rank}{self._where()} is gone: {why or error}"))

    def _where(self) -> str:
        return f" at {self.line.peer}" if self.process is None and self.line.peer else ""

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
        self.door: tuple[str, int] | None = None  # where others can reach rank 0
        self._arrive: Callable[[], None] = lambda: None
        self._heard_by: dict[str, Callable[[Message], None]] = {}
        self._tell: list[Callable[[RankError], None]] = []
        self._failing = threading.Lock()
        self._ending = contextlib.ExitStack()  # what else is to be done at the end
        self._end = weakref.finalize(self, _end, self.members, self._ending)

    def add(
        self,
        rank: int,
        line: Line,
        place: str,
        process: RankProcess | None = None,
    ) -> None:
        failed = self._member_failed
        member = Member(rank, line, process, self.silence, failed, place, self._heard_by)
        member.last = self._last
        self.members.append(member)
        self.members.sort(key=lambda member: member.rank)

    def awaits(self, door: tuple[str, int], arrive: Callable[[], None]) -> None:
        """``arrive`` waits for those who are not there yet; the address is where they come to."""
        self.door, self._arrive = door, arrive

    def arrive(self) -> None:
        """Wait until all are there. RankError: they do not come."""
        self._arrive()

    def at_end(self, act: Callable[[], object]) -> None:
        self._ending.callback(act)

    def ask(self, kind: str, **content: Any) -> None:
        """Tell all the same; they will answer."""
        for member in self.members:
            with contextlib.suppress(RankError):  # its own thread finds out why
                member.line.send(kind, **content)

    def answers(self, kind: str) -> list[Message]:
        """Of all, in the order of ranks. What one of them has refused, or a RankError."""
        found = [member.answer(kind) for member in self.members]
        if self.error is not None:
            raise self.error
        return [message for message in found if message is not None]

    def tell_of(self, kind: str, act: Callable[[Message], None]) -> None:
        """Messages of that kind, which nobody waits for in turn: in the threads that hear them."""
        self._heard_by[kind] = act

    def refuse(self, member: Member, why: str) -> None:
        """Raises it as a ConfigError here, and there."""
        with contextlib.suppress(RankError):
            member.line.send("refused", why=why)
        raise ConfigError(f"rank {member.rank}{member._where()} cannot join: {why}")

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    # -- while it computes -----------------------------------------------------------------------

    def begin(self, group: RankGroup) -> None:
        """From now on waits for other ranks end when a rank fails."""
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
        """What came up in a step, as who watches explains it."""
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
            member.line.close()


def _as_rank_error(error: QuireError) -> RankError:
    return error if isinstance(error, RankError) else RankError(str(error))


def _end(members: Sequence[Member], ending: contextlib.ExitStack) -> None:
    for member in members:
        with contextlib.suppress(RankError):
            member.line.send("end")
        member.line.close()
    processes = [member.process for member in members if member.process is not None]
    end_all(processes, max((member.last for member in members), default=0.0))
    ending.close()
