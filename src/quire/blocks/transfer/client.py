"""Fetches blocks from a prefill engine, before the prompt that begins with them is admitted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from quire.blocks.transfer.key import SharedKey
from quire.blocks.transfer.peers import MOST_AT_ONCE, Address, Peers
from quire.blocks.transfer.server import (
    ANSWER,
    GREETING,
    MOST_NAMES,
    PROOF,
    STATE,
    Identity,
    WantedBlocks,
    WantedState,
)
from quire.blocks.transfer.shelves import FetchedBlocks
from quire.core.memory import BlockHash, name_of_state
from quire.core.scheduling import Capability
from quire.kernels.transport import Connection, PeerError, Stranger, TooSlow

logger = logging.getLogger(__name__)


class Missing(NamedTuple):
    """What an engine lacks of a text, by the names of its blocks, in their order.

    ends: blocks after which it has no state, up to the text's end; nothing: layers keep none. No
        blocks are missing after the last of them.
    """

    blocks: Sequence[BlockHash]
    ends: Sequence[BlockHash] = ()

    def up_to(self, depth: int) -> Missing:
        """The same without what comes after the first ``depth`` of its ends."""
        after = {*self.ends[depth:]}
        return Missing([one for one in self.blocks if one not in after], self.ends[:depth])

    def some(self, most: int) -> Missing:
        """The first blocks, and the ends that these lead to."""
        if len(self.blocks) <= most:
            return Missing(self.blocks, self.ends[:MOST_NAMES])
        known = dict.fromkeys(self.ends)
        first = next((i for i, one in enumerate(known) if one == self.blocks[most]), len(known))
        return Missing(self.blocks[:most], self.ends[: min(first, MOST_NAMES)])


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

    def begin(self, host: str, port: int, missing: Missing) -> Callable[[float], None]:
        """Start their fetching; the result waits for it, for a bounded time."""
        ...


class BlockFetcher(Capability):
    """Fetches records into a cache, which checks that they are what they should be.

    A peer that dies, lies or is slow costs its time limit and nothing else: missing blocks are
    computed. Other requests do not wait for it (``Peers``). Blocks are useful only from a text's
    beginning, so nothing is fetched after the first missing one. Where layers keep states, blocks
    are useful up to one: so the deepest state of the peer comes first, then the blocks before it.

    states: where they are put, if layers keep some. key: that peers must have.
    rank: whose parts these are; the peer's rank listens that many ports after its first.
    others: the other ranks, which fetch as well.
    prefiller: computes prompts that no engine has yet; None: they are computed here.
    num_fetched: records. num_failed: transfers that broke off. num_missing: blocks that the peer
        lacked.
    """

    def __init__(
        self,
        shelf: FetchedBlocks,
        identity: Identity,
        seconds: float,
        rank: int = 0,
        states: FetchedBlocks | None = None,
        key: SharedKey | None = None,
    ) -> None:
        self.key = key or SharedKey()
        self._shelf, self._states = shelf, states
        self._rank = rank
        self.others: FetchingRanks | None = None
        self._identity = identity
        self._seconds = seconds
        self._peers = Peers()
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="quire-fetch")
        self.prefiller: Prefiller | None = None
        self.num_fetched = self.num_failed = self.num_missing = 0

    @property
    def num_unused(self) -> int:
        """Records that were fetched, and evicted before they were used."""
        return self._shelf.num_unused + (0 if self._states is None else self._states.num_unused)

    @property
    def keeps_states(self) -> bool:
        """Whether layers keep some, so that blocks are of no use without one."""
        return self._states is not None

    async def fetch(self, host: str, port: int, missing: Missing) -> None:
        """Fetch these blocks of a text, in order, as many as come in time."""
        wanted, address = self._wanted(missing), (host, port)
        if not wanted.blocks and not wanted.ends:
            return
        try:
            arrived = await asyncio.wait_for(self._turn(address, wanted), self._seconds)
        except (asyncio.TimeoutError, TooSlow):
            self._peers.hung(address)
            self._fail(address, "it is too slow")
        except PeerError as error:
            self._fail(address, str(error))
        else:
            self._peers.answered(address)
            self._tell(address, *arrived, len(missing.blocks))

    async def _turn(self, address: Address, wanted: Missing) -> tuple[int, int]:
        """Wait for the peer's turn, and for those of these blocks that it has; see ``_fetch``."""
        refused = await self._peers.begin(address)
        if refused is not None:
            raise PeerError(refused)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._fetch_all, *address, wanted)
        work.add_done_callback(partial(self._ended, address))
        return await asyncio.shield(work)  # its thread is busy until its own deadline

    def fetch_part(self, host: str, port: int, missing: Missing) -> None:
        """Fetch as another rank than 0, in the calling thread. Logs failures."""
        try:
            self._fetch(host, port, self._wanted(missing))
        except PeerError as error:
            logger.warning("blocks from %s:%d: %s; they are computed", host, port, error)

    def _ended(self, address: Address, work: asyncio.Future[tuple[int, int]]) -> None:
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

    def _wanted(self, missing: Missing) -> Missing:
        """The missing blocks, as many as fit in a request and in memory."""
        shelf = self._shelf
        blocks = [one for one in missing.blocks if shelf.keeps_blocks and not shelf.has(one)]
        return Missing(blocks, missing.ends).some(min(MOST_NAMES, shelf.most))

    def _fetch_all(self, host: str, port: int, wanted: Missing) -> tuple[int, int]:
        if self.others is None:
            return self._fetch(host, port, wanted)
        wait = self.others.begin(host, port, wanted)
        arrived = self._fetch(host, port, wanted)
        wait(self._seconds)
        return arrived

    def _fetch(self, host: str, port: int, wanted: Missing) -> tuple[int, int]:
        """How many of the first blocks have arrived, of how many that are of use."""
        if not wanted.blocks and not wanted.ends:
            return 0, 0
        deadline = time.monotonic() + self._seconds

        def left() -> float:
            return deadline - time.monotonic()

        size = self._shelf.record_bytes
        with closing(Connection.to(host, port + self._rank, self._seconds)) as connection:
            self._greet(connection, left)
            if self._states is not None:
                wanted = self._fetch_state(connection, self._states, wanted, left)
            names = wanted.blocks
            with self._shelf.expecting(names):
                connection.send(WantedBlocks(list(names)), seconds=left())
                for count, name in enumerate(names):
                    sent, record = connection.receive_along(ANSWER, size, left())
                    if len(record) != sent.found * size:
                        raise Stranger
                    if not sent.found:
                        return count, len(names)
                    self._shelf.put(name, record)
                    self.num_fetched += 1
        return len(names), len(names)

    def _greet(self, connection: Connection, left: Callable[[], float]) -> None:
        ours = structs.replace(self._identity, nonce=self.key.nonce())
        connection.send(ours, seconds=left())
        theirs = connection.receive(GREETING, left())
        ours.compare(theirs)
        if self.key:
            proof = connection.receive(PROOF, left())
            self.key.check(proof, "serves", ours.nonce, theirs.nonce)
            connection.send(self.key.proof("fetches", theirs.nonce, ours.nonce), seconds=left())

    def _fetch_state(
        self,
        connection: Connection,
        states: FetchedBlocks,
        wanted: Missing,
        left: Callable[[], float],
    ) -> Missing:
        """Fetch the deepest state that the peer has, unless it is here; what is of use with it."""
        ends, size = wanted.ends, states.record_bytes
        here = max(
            (i + 1 for i, name in enumerate(ends) if states.has(name_of_state(name))), default=0
        )
        connection.send(WantedState(list(ends[here:])), seconds=left())
        sent, record = connection.receive_along(STATE, size, left())
        if len(record) != (sent.depth > 0) * size or sent.depth > len(ends) - here:
            raise Stranger
        if sent.depth:
            here += sent.depth
            states.put(name_of_state(ends[here - 1]), record)
            self.num_fetched += 1
        return wanted.up_to(here)
