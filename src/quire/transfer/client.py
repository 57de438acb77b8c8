"""Blocks from a prefill engine, before the prompt that begins with them is let in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from quire.memory import BlockHash
from quire.store import RecordForm, RecordShelf
from quire.transfer.connection import Connection
from quire.transfer.identity import Identity, TransferError
from quire.transfer.server import MOST_NAMES, QUESTION

logger = logging.getLogger(__name__)

_THREADS = 4


class Prefiller(Protocol):
    """Has other engines compute prompts."""

    def pays(self, new_tokens: int) -> bool:
        """Whether to ask for a prompt that has so many tokens in blocks that are not here."""
        ...

    async def prefill(self, prompt: Mapping[str, Any]) -> tuple[str, int] | None:
        """Address and port of who has its blocks now; None: nobody has. Raises nothing."""
        ...


class FetchingRanks(Protocol):
    """The other ranks of an engine, each of which has its part of a block to fetch."""

    def begin(self, host: str, port: int, names: Sequence[BlockHash]) -> Callable[[float], None]:
        """Have them fetch theirs; what is returned waits for that, for at most so many seconds."""
        ...


class BlockFetcher:
    """Fetches records and puts them on a shelf, which tells whether they are what they should be.

    A peer that dies, lies or is slow costs the time that it may take, and nothing else: what has
    not come is computed.

    rank: whose parts these are; a peer's listens so many ports after its first.
    others: the other ranks, who fetch as well.
    prefiller: who computes prompts that do not say who has; None: they are computed here.
    num_fetched: records; num_failed: transfers that ended before their end.
    """

    def __init__(
        self,
        shelf: RecordShelf,
        form: RecordForm,
        identity: Identity,
        seconds: float,
        rank: int = 0,
    ) -> None:
        self._shelf = shelf
        self._rank = rank
        self.others: FetchingRanks | None = None
        self._form = form
        self._identity = identity
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-fetch")
        self.prefiller: Prefiller | None = None
        self.num_fetched = self.num_failed = 0

    async def fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        """Have these blocks on the shelf, as many as can be had in time."""
        wanted = self._wanted(names)
        if not wanted:
            return
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, self._fetch_all, host, port, wanted
        )
        try:
            await asyncio.wait_for(work, self._seconds)
        except (TransferError, asyncio.TimeoutError) as error:
            self.num_failed += 1
            why = str(error) or "it is too slow"
            logger.warning("blocks from %s:%d: %s; the rest is computed", host, port, why)

    def fetch_part(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        """The same, of another rank than 0, in the calling thread. Logs what went wrong."""
        try:
            self._fetch(host, port, self._wanted(names))
        except TransferError as error:
            logger.warning("blocks from %s:%d: %s; they are computed", host, port, error)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _wanted(self, names: Sequence[BlockHash]) -> list[BlockHash]:
        """Those that are not here, as many as can be asked for and kept."""
        wanted = [name for name in names if not self._shelf.has(name)]
        return wanted[: min(MOST_NAMES, self._shelf.most)]

    def _fetch_all(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        if self.others is None:
            return self._fetch(host, port, names)
        wait = self.others.begin(host, port, names)
        self._fetch(host, port, names)
        wait(self._seconds)

    def _fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        if not names:
            return
        with Connection.to(host, port + self._rank, self._seconds) as connection:
            connection.greet(self._identity)
            connection.send(QUESTION.pack(len(names)), *names)
            for name in names:
                here = connection.receive(1)
                if here == b"\1":
                    self._shelf.put(name, connection.receive(self._form.num_bytes))
                    self.num_fetched += 1
                elif here != b"\0":
                    raise TransferError("its answer makes no sense")
