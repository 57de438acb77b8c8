"""Blocks from a prefill engine, before the prompt that begins with them is let in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
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


class BlockFetcher:
    """Fetches records and puts them on a shelf, which tells whether they are what they should be.

    A peer that dies, lies or is slow costs the time that it may take, and nothing else: what has
    not come is computed.

    prefiller: who computes prompts that do not say who has; None: they are computed here.
    num_fetched: records; num_failed: transfers that ended before their end.
    """

    def __init__(
        self, shelf: RecordShelf, form: RecordForm, identity: Identity, seconds: float
    ) -> None:
        self._shelf = shelf
        self._form = form
        self._identity = identity
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-fetch")
        self.prefiller: Prefiller | None = None
        self.num_fetched = self.num_failed = 0

    async def fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        """Have these blocks on the shelf, as many as can be had in time."""
        wanted = [name for name in names if not self._shelf.has(name)]
        wanted = wanted[: min(MOST_NAMES, self._shelf.most)]
        if not wanted:
            return
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, self._fetch, host, port, wanted
        )
        try:
            await asyncio.wait_for(work, self._seconds)
        except (TransferError, asyncio.TimeoutError) as error:
            self.num_failed += 1
            why = str(error) or "it is too slow"
            logger.warning("blocks from %s:%d: %s; the rest is computed", host, port, why)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        with Connection.to(host, port, self._seconds) as connection:
            connection.greet(self._identity)
            connection.send(QUESTION.pack(len(names)), *names)
            for name in names:
                here = connection.receive(1)
                if here == b"\1":
                    self._shelf.put(name, connection.receive(self._form.num_bytes))
                    self.num_fetched += 1
                elif here != b"\0":
                    raise TransferError("its answer makes no sense")
