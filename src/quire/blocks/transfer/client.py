"""Fetches blocks from a prefill engine, before the prompt that begins with them is admitted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from quire.blocks.store import RecordForm
from quire.blocks.transfer.peers import MOST_AT_ONCE, Address, Peers
from quire.blocks.transfer.server import ANSWER, GREETING, MOST_NAMES, Identity, WantedBlocks
from quire.blocks.transfer.shelves import FetchedBlocks
from quire.core.memory import BlockHash
from quire.core.scheduling import Capability
from quire.kernels.transport import Connection, PeerError, Stranger, TooSlow

logger = logging.getLogger(__name__)


class Prefiller(Protocol):
    """Has other engines compute prompts."""

    def pays(self, new_tokens: int) -> bool:
        """Whether to have a prompt computed of which the pool lacks this many tokens."""
        ...

    async def prefill(self, prompt: Mapping[str, Any]) -> tuple[str, int] | None:
        """Address and port of the engine that has the blocks then; None: none. Raises nothing."""
        ...


class FetchingRanks(Protocol):
    """The other ranks of an engine, each of which fetches its part of a block."""

    def begin(self, host: str, port: int, names: Sequence[BlockHash]) -> Callable[[float], None]:
        """Start their fetching; the result waits for it, for a bounded time."""
        ...


class BlockFetcher(Capability):
    """Fetches records into a cache, which checks that they are what they should be.

    A peer that dies, lies or is slow costs its time limit and nothing else: missing blocks are
    computed. Other requests do not wait for it (``Peers``). Blocks are useful only from a text's
    beginning, so nothing is fetched after the first missing one.

    rank: whose parts these are; the peer's rank listens that many ports after its first.
    others: the other ranks, which fetch as well.
    prefiller: computes prompts that no engine has yet; None: they are computed here.
    num_fetched: records. num_failed: transfers that broke off. num_missing: blocks that the peer
        lacked.
    """

    def __init__(
        self,
        shelf: FetchedBlocks,
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
        self._peers = Peers()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="quire-fetch")
        self.prefiller: Prefiller | None = None
        self.num_fetched = self.num_failed = self.num_missing = 0

    @property
    def num_unused(self) -> int:
        """Records that were fetched, and evicted before they were used."""
        return self._shelf.num_unused

    async def fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        """Fetch these blocks of a text, in order, as many as come in time."""
        wanted, address = self._wanted(names), (host, port)
        if not wanted:
            return
        try:
            count = await asyncio.wait_for(self._turn(address, wanted), self._seconds)
        except (asyncio.TimeoutError, TooSlow):
            self._peers.hung(address)
            self._fail(address, "it is too slow")
        except PeerError as error:
            self._fail(address, str(error))
        else:
            self._peers.answered(address)
            self._tell(address, count, len(wanted), len(names))

    async def _turn(self, address: Address, names: Sequence[BlockHash]) -> int:
        """Wait for the peer's turn, and for those of these blocks that it has."""
        refused = await self._peers.begin(address)
        if refused is not None:
            raise PeerError(refused)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._fetch_all, *address, names)
        work.add_done_callback(partial(self._ended, address))
        return await asyncio.shield(work)  # its thread is busy until its own deadline

    def fetch_part(self, host: str, port: int, names: Sequence[BlockHash]) -> None:
        """Fetch as another rank than 0, in the calling thread. Logs failures."""
        try:
            self._fetch(host, port, self._wanted(names))
        except PeerError as error:
            logger.warning("blocks from %s:%d: %s; they are computed", host, port, error)

    def _ended(self, address: Address, work: asyncio.Future[int]) -> None:
        self._peers.end(address)
        if not work.cancelled():
            work.exception()  # the caller logs it if it still waits

    def _fail(self, address: Address, why: str) -> None:
        self.num_failed += 1
        logger.warning("blocks from %s:%d: %s; the rest is computed", *address, why)

    def _tell(self, address: Address, count: int, wanted: int, asked: int) -> None:
        """Log what a successful transfer did not bring: a buffer may be too small."""
        if count < wanted:
            self.num_missing += wanted - count
            logger.warning(
                "blocks from %s:%d: it has the first %d of %d; the rest is computed. Its "
                "kv_buffer_size may be too small",
                *(*address, count, wanted),
            )
        elif wanted < asked and wanted == self._shelf.most:
            logger.warning(
                "blocks from %s:%d: kv_buffer_size keeps %d of %d here; the rest is computed",
                *(*address, wanted, asked),
            )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _wanted(self, names: Sequence[BlockHash]) -> list[BlockHash]:
        """The missing blocks, as many as fit in a request and in memory."""
        wanted = [name for name in names if not self._shelf.has(name)]
        return wanted[: min(MOST_NAMES, self._shelf.most)]

    def _fetch_all(self, host: str, port: int, names: Sequence[BlockHash]) -> int:
        """How many of the first blocks have arrived."""
        if self.others is None:
            return self._fetch(host, port, names)
        wait = self.others.begin(host, port, names)
        count = self._fetch(host, port, names)
        wait(self._seconds)
        return count

    def _fetch(self, host: str, port: int, names: Sequence[BlockHash]) -> int:
        if not names:
            return 0
        deadline = time.monotonic() + self._seconds

        def left() -> float:
            return deadline - time.monotonic()

        with (
            self._shelf.expecting(names),
            closing(Connection.to(host, port + self._rank, self._seconds)) as connection,
        ):
            connection.send(self._identity, seconds=left())
            self._identity.compare(connection.receive(GREETING, left()))
            connection.send(WantedBlocks(list(names)), seconds=left())
            for count, name in enumerate(names):
                sent, record = connection.receive_along(ANSWER, self._form.num_bytes, left())
                if len(record) != sent.found * self._form.num_bytes:
                    raise Stranger
                if not sent.found:
                    return count
                self._shelf.put(name, record)
                self.num_fetched += 1
        return len(names)
