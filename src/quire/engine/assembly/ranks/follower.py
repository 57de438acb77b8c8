"""A rank other than 0: what it does from its start to its end, in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, TypeVar

import torch
from msgspec import Struct

from quire.blocks.store import Store
from quire.blocks.transfer import BlockFetcher, Missing
from quire.capabilities.adapters.reading import HeldAdapters, ReadAdapter, adapter_check
from quire.core.errors import QuireError, RankError
from quire.engine.assembly.centring import with_centred_keys
from quire.engine.assembly.loading import cache_shape, forms_of, kv_dtype, load, locate
from quire.engine.assembly.main_memory import kept_and_files
from quire.engine.assembly.ranks import messages
from quire.engine.assembly.ranks.facts import facts_of
from quire.engine.assembly.ranks.processes import Start
from quire.engine.assembly.ranks.team import STARTING
from quire.engine.assembly.store import (
    BlocksOf,
    begin_transfer,
    check_store,
    listen_for_decoders,
    open_store,
)
from quire.engine.assembly.tokenizer import tokenizer_of
from quire.engine.capacity import limits_of
from quire.engine.config import EngineConfig
from quire.engine.streams import last_words, nobody_waits
from quire.execution.device_runtime import OnCPU
from quire.execution.free_memory import memory_or_refusal
from quire.execution.ranks import follow
from quire.kernels.gloo_ranks import GlooRanks
from quire.kernels.heap import keep_what_steps_take
from quire.kernels.instructions import choose_instructions
from quire.kernels.ranks import RankGroup
from quire.kernels.transport import Connection, PeerError

logger = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", bound=Struct)

_BEATS = 4  # in the time for which it may be silent
_LONGEST_BEAT = 5.0  # seconds
_LAST_WORD = 0.5  # seconds until it has been heard, after its sender has gone
_NO_REASON = 5.0  # seconds until rank 0 must have noticed what another rank has
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # rank 0 hears them, and decides


def run(connection: socket.socket) -> NoReturn:
    """Be a rank, and end the process. It computes on, whether what it prints is read or not."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with nobody_waits():
        _run(connection)


def _run(connection: socket.socket) -> NoReturn:
    start = Start(**json.loads(sys.stdin.buffer.readline()))
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s %(name)s: rank {start.rank}: %(message)s",
    )
    if start.cpus is not None:
        os.sched_setaffinity(0, start.cpus)
    torch.set_num_threads(start.threads)
    try:
        rank_0 = Connection(connection, start.config["distributed_timeout_seconds"])
    except PeerError:  # rank 0 is gone
        _leave(1)
    rank = _Rank(start, rank_0)
    try:
        rank.live()
    except RankError as error:
        rank.report(error)
        time.sleep(_NO_REASON)  # mostly rank 0 ends it before, and knows better what has happened
    except QuireError as error:
        rank.report(error)
    except BaseException as error:
        logger.exception("failed")
        rank.report(RankError(f"failed: {error!r}"))
    _leave(1)


def _leave(status: int) -> NoReturn:
    """End the process, whatever other threads do."""
    last_words()
    os._exit(status)


class _Rank:
    def __init__(self, start: Start, connection: Connection) -> None:
        self._number, self._with_rank_0 = start.rank, start.with_rank_0
        self._rank_0 = connection
        self._config = EngineConfig.create(start.config)
        self._adapters: HeldAdapters | None = None
        self._store: Store | None = None
        self._fetcher: BlockFetcher | None = None
        self._told_to_end = threading.Event()
        self._heard: SimpleQueue[Struct] = SimpleQueue()
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()  # orders
        for task in (self._beat, self._hear, self._outlive_nobody):
            threading.Thread(target=task, daemon=True).start()

    @memory_or_refusal()
    def live(self) -> NoReturn:
        """Join the others, load, and compute what rank 0 tells."""
        config, rank_0 = self._config, self._rank_0
        check_store(config)
        server = listen_for_decoders(config, self._number)
        instructions = choose_instructions(config.cpu_isa)
        met = self._expect(messages.Meet)
        directory = Path(met.directory) if self._with_rank_0 else locate(config)
        rank_0.send(messages.RankFacts(facts_of(config, directory, instructions.name)))
        go = self._expect(messages.Go)
        group = self._join(go, instructions.name)
        keep_what_steps_take()
        runtime = OnCPU(config.swap_path, instructions, go.ranks_here)
        model = load(config, directory, runtime.device, runtime.admit, instructions.name, group)
        model = with_centred_keys(config, model, tokenizer_of(config), instructions.name)
        dtype = kv_dtype(config, model)
        limits = limits_of(config, cache_shape(model, dtype))
        runtime.promise(0, 0)  # what loading took is given back
        rank_0.send(messages.Ready())
        self._expect(messages.CountMemory)
        rank_0.send(messages.FreeMemory(runtime.memory_budget(model, limits, dtype).free))
        pool = self._expect(messages.MakePool)
        limits = replace(limits, kv_groups=pool.kv_groups, max_model_len=pool.max_model_len)
        if config.enable_lora:
            check = adapter_check(model, instructions.name, config.max_lora_rank)
            self._adapters = HeldAdapters(check)
        weights = None if self._adapters is None else self._adapters.weights
        cache = cache_shape(model, dtype)
        with runtime.settling():
            runtime.promise(*kept_and_files(config, limits, cache))
        forms = forms_of(runtime.kernels, model, dtype)
        blocks = BlocksOf(directory, limits, cache, forms, self._number)
        self._store = open_store(config, blocks)
        transfer, shelf = begin_transfer(config, server, blocks)
        self._fetcher = transfer if isinstance(transfer, BlockFetcher) else None
        source = shelf or self._store
        executor = runtime.executor(model, limits, dtype, None, weights, source)
        if pool.warm_up:
            runtime.touch_pool()
        rank_0.send(messages.Ready())
        follow(group, executor.worker, executor.adapters, source)

    def report(self, error: QuireError) -> None:
        """Tell rank 0 and, on another machine, the log; unless all are ending."""
        self._let_end()
        if not self._with_rank_0:
            logger.error("%s", error)
        try:
            self._rank_0.send(messages.RankFailed(type(error).__name__, str(error)))
        except PeerError:
            _leave(1)

    def _join(self, go: messages.Go, instruction_set: str) -> RankGroup:
        config, number = self._config, self._number
        size, timeout = config.tensor_parallel_size, config.distributed_timeout_seconds
        if go.memory:
            from quire.kernels.shared_ranks import SharedMemoryRanks

            return SharedMemoryRanks.join(go.memory, number, size, timeout, instruction_set)
        address, inboxes = self._rank_0.own_address, {0: self._inbox}
        return GlooRanks(number, size, self._answer, inboxes, go.address, address, timeout)

    def _answer(self, payload: bytes) -> None:
        try:
            self._rank_0.send(messages.OfStep(), payload)
        except PeerError as error:
            raise RankError(f"rank 0 is gone: {error}") from error

    def _expect(self, kind: type[_Kind]) -> _Kind:
        message = self._heard.get()
        if isinstance(message, kind):
            return message
        said = type(message).__name__
        raise RankError(f"rank 0 said {said} instead of {kind.__name__}")

    # -- in threads of their own -----------------------------------------------------------------

    def _beat(self) -> None:
        """Let rank 0 know that this process gets on."""
        seconds = min(_LONGEST_BEAT, self._config.distributed_timeout_seconds / _BEATS)
        while True:
            time.sleep(seconds)
            self._rank_0.send(messages.Beat())

    def _hear(self) -> None:
        """Hear rank 0 until it is gone, then end the process."""
        status = 1
        patience: float | None = STARTING  # until all ranks have come
        try:
            while True:
                message, payload = self._rank_0.receive_along(
                    messages.OF_RANK_0, messages.MOST, patience
                )
                patience = None  # it may have nothing to say
                if isinstance(message, messages.OfStep):
                    self._inbox.put(bytes(payload))
                elif isinstance(message, (ReadAdapter, messages.Fetch)):
                    act = self._load if isinstance(message, ReadAdapter) else self._fetch
                    threading.Thread(target=act, args=(message,), daemon=True).start()
                elif isinstance(message, messages.RankRefused):
                    self._say(f"rank 0 refuses this rank: {message.why}")
                    break
                elif isinstance(message, messages.End):
                    self._told_to_end.set()
                    self._put_away()
                    status = 0
                    break
                else:
                    self._heard.put(message)
        except PeerError as error:
            self._say(f"rank 0 is gone: {error}")
        finally:
            _leave(status)

    def _put_away(self) -> None:
        """Write what is still to be stored."""
        if self._store is not None:
            self._store.close()

    def _let_end(self) -> None:
        """Wait here, if another thread has been told to end the process."""
        if self._told_to_end.is_set():
            threading.Event().wait()

    def _say(self, text: str) -> None:
        if not self._with_rank_0:
            logger.error("%s", text)

    def _load(self, message: ReadAdapter) -> None:
        assert self._adapters is not None
        self._rank_0.send(self._adapters.load(message))

    def _fetch(self, message: messages.Fetch) -> None:
        """Fetch this rank's part of blocks; what does not come is computed."""
        assert self._fetcher is not None
        missing = Missing(message.names, message.ends)
        self._fetcher.fetch_part(message.host, message.port, missing)
        self._rank_0.send(messages.Fetched(message.number))

    def _outlive_nobody(self) -> NoReturn:
        """End with the process that started this one."""
        sys.stdin.buffer.read()
        self._told_to_end.wait(_LAST_WORD)
        self._let_end()
        _leave(1)
