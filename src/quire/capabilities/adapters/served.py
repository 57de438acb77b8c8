"""The adapters that are served: by their names, and which of them are in memory."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from quire.core.errors import EngineError, QuireError, RequestError, UnknownAdapterError
from quire.core.protocol import Adapter, Request
from quire.core.scheduling import Capability, Hooks, Scheduler, Session
from quire.core.scheduling.capability import Unready

logger = logging.getLogger(__name__)

_AT_MOST = 0.05  # seconds to wait where there is nothing to do until an adapter has been read


class AdapterSource(NamedTuple):
    """Where an adapter is read from; what ``load`` gives is for the executor alone.

    load: raises a QuireError where its files are not what they were.
    table_bytes: of what it has in the place of the model's embedding and head.
    """

    fingerprint: bytes
    path: Path
    load: Callable[[], Any]
    table_bytes: int = 0


class AdapterCard(NamedTuple):
    """An adapter as lists of models show it."""

    name: str
    path: str
    parent: str | None  # the model that it is said to be an adapter of


class Read(NamedTuple):
    """An adapter that was read, or why it could not be."""

    adapter: Adapter
    weights: Any
    error: Exception | None


class Adapters(Capability):
    """Names, sources, and the weights of the adapters that were needed last.

    Weights are read by a thread of its own, one adapter after the other, so that steps go on
    meanwhile; what is in memory changes between two steps only. An adapter that is let go is served
    to the end of the requests and sessions that have it.

    most_kept: adapters in memory, at least as many as there are slots.
    check: what is in a directory, or a QuireError; takes time, and no memory.
    """

    def __init__(self, most_kept: int, check: Callable[[Path], AdapterSource]) -> None:
        self._most_kept = most_kept
        self._check = check
        self._cards: dict[str, tuple[Adapter, AdapterCard]] = {}
        self._sources: dict[Adapter, AdapterSource] = {}
        self._users: Counter[Adapter] = Counter()  # requests that have not ended
        self._sessions: Counter[Adapter] = Counter()  # that are open
        self.weights: dict[Adapter, Any] = {}  # in memory, the one that was used longest ago first
        self._read: Read | None = None  # by the thread, for the engine's to take
        self._reader: threading.Thread | None = None

    # -- from any thread -----------------------------------------------------------------------

    def find(self, name: str) -> Adapter:
        """The adapter of this name. UnknownAdapterError: there is none."""
        found = self._cards.get(name)
        if found is None:
            raise UnknownAdapterError(f"adapter {name:.100} is not loaded", "model")
        return found[0]

    def __contains__(self, name: str) -> bool:
        return name in self._cards

    def is_from(self, name: str, path: Path) -> bool:
        """Whether the adapter of this name was read from ``path``."""
        found = self._cards.get(name)
        return found is not None and Path(found[1].path).resolve() == path.resolve()

    @property
    def cards(self) -> list[AdapterCard]:
        return [card for _, card in list(self._cards.values())]

    def waiting(self, in_use: Iterable[Adapter]) -> list[Adapter]:
        """The adapters that requests wait for, without the ones in use."""
        return [adapter for adapter in list(self._users) if adapter not in set(in_use)]

    def check(self, path: Path) -> AdapterSource:
        """The adapter in a directory; takes as long as reading it. A QuireError: it is none."""
        return self._check(path)

    # -- in the engine's thread ----------------------------------------------------------------

    def add(
        self, name: str, source: AdapterSource, parent: str | None, *, in_place: bool = False
    ) -> None:
        """Serve an adapter under a name. RequestError: the name is taken, and not ``in_place``."""
        if name in self._cards and not in_place:
            raise RequestError(
                f"adapter {name} is loaded already; with load_inplace it is exchanged", "lora_name"
            )
        if name in self._cards:
            self.remove(name)
        adapter = Adapter(source.fingerprint, name)
        self._sources[adapter] = source
        self._cards[name] = adapter, AdapterCard(name, str(source.path), parent)

    def remove(self, name: str) -> None:
        """Give up a name: only requests and sessions that have the adapter keep it."""
        adapter = self.find(name)
        del self._cards[name]
        self._forget(adapter)

    def request_begins(self, request: Request) -> None:
        """Serve its adapter to it. UnknownAdapterError: that has been removed meanwhile."""
        if request.adapter is not None:
            self._serve(request.adapter, self._users)

    def request_ends(self, request: Request) -> None:
        if request.adapter is not None:
            self._leave(request.adapter, self._users)

    def session_begins(self, session: Session) -> None:
        """Serve its adapter to it, whatever becomes of the name; see ``request_begins``."""
        if (adapter := session.resting.request.adapter) is not None:
            self._serve(adapter, self._sessions)

    def session_ends(self, session: Session) -> None:
        if (adapter := session.resting.request.adapter) is not None:
            self._leave(adapter, self._sessions)

    def _serve(self, adapter: Adapter, users: Counter[Adapter]) -> None:
        if adapter not in self._sources:
            raise UnknownAdapterError(f"adapter {adapter.name} is not loaded any more", "model")
        users[adapter] += 1

    def _leave(self, adapter: Adapter, users: Counter[Adapter]) -> None:
        users[adapter] -= 1
        if not users[adapter]:
            del users[adapter]
            self._forget(adapter)

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        """Forget who had which adapter: a new engine has no requests and no sessions."""
        had = {*self._users, *self._sessions}
        self._users.clear()
        self._sessions.clear()
        for adapter in had:
            self._forget(adapter)

    def _forget(self, adapter: Adapter) -> None:
        named = any(adapter == served for served, _ in self._cards.values())
        if not (named or adapter in self._users or adapter in self._sessions):
            self._sources.pop(adapter, None)
            self.weights.pop(adapter, None)

    def prepare(self, scheduler: Scheduler) -> Unready | None:
        """Take what has been read, and have the next one read."""
        slots = scheduler.adapters
        slots.ready = self.weights
        failed = self._take()
        in_use = slots.in_use
        for adapter in in_use:
            self.weights[adapter] = self.weights.pop(adapter)
        wanted = [*in_use, *slots.wanted][: self._most_kept]
        absent = [one for one in wanted if one not in self.weights and one in self._sources]
        if absent and self._reader is None and failed is None:
            self._make_room(wanted)
            self._reader = threading.Thread(
                target=self._load, args=(absent[0], self._sources[absent[0]]), daemon=True
            )
            self._reader.start()
        if failed is None:
            return None
        error = EngineError(f"adapter {failed.adapter.name} cannot be read: {failed.error}")
        return lambda request: request.adapter == failed.adapter, error

    def rest(self) -> None:
        """Wait a moment for the adapter that is being read; another request may come."""
        if self._reader is not None:
            self._reader.join(_AT_MOST)

    def _take(self) -> Read | None:
        if self._reader is None or self._reader.is_alive():
            return None
        read, self._reader, self._read = self._read, None, None
        assert read is not None
        if read.error is not None:
            return read
        if read.adapter in self._sources:  # else nobody wants it any more
            self.weights[read.adapter] = read.weights
        return None

    def _make_room(self, wanted: Iterable[Adapter]) -> None:
        """Drop adapters that are not wanted until there is room for one more."""
        spare = (adapter for adapter in list(self.weights) if adapter not in wanted)
        while len(self.weights) >= self._most_kept:
            del self.weights[next(spare)]

    def _load(self, adapter: Adapter, source: AdapterSource) -> None:
        try:
            self._read = Read(adapter, source.load(), None)
        except QuireError as error:
            self._read = Read(adapter, None, error)
        except Exception as error:
            logger.exception("adapter %s cannot be read", adapter.name)
            self._read = Read(adapter, None, error)
