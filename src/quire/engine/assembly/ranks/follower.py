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
from typing import NoReturn

import torch

from quire.blocks.store import DiskStore, Tiers
from quire.blocks.transfer import BlockFetcher
from quire.capabilities.adapters.reading import HeldAdapters, adapter_check
from quire.core.errors import QuireError, RankError
from quire.core.kv_groups import KVGroup
from quire.engine.assembly.loading import cache_shape, forms_of, kv_dtype, load, locate
from quire.engine.assembly.main_memory import kept_and_files
from quire.engine.assembly.ranks.facts import facts_of
from quire.engine.assembly.ranks.groups import join_group
from quire.engine.assembly.ranks.line import Line, Message
from quire.engine.assembly.ranks.processes import Start
from quire.engine.assembly.ranks.team import STARTING
from quire.engine.assembly.store import check_store, open_store
from quire.engine.assembly.transfer import begin_transfer, listen_for_decoders
from quire.engine.capacity import limits_of
from quire.engine.config import EngineConfig
from quire.engine.streams import last_words, nobody_waits
from quire.execution.device_runtime import OnCPU
from quire.execution.free_memory import memory_or_refusal
from quire.execution.ranks import follow
from quire.kernels.heap import keep_what_steps_take
from quire.kernels.instructions import choose_instructions

logger = logging.getLogger(__name__)

_BEATS = 4  # in the time for which it may be silent
_LONGEST_BEAT = 5.0  # seconds
_LAST_WORD = 0.5  # seconds until it has been heard, from when whoever says it has gone
_NO_REASON = 5.0  # seconds until rank 0 must have noticed what another rank has
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # rank 0 hears them, and decides


def run(connection: socket.socket) -> NoReturn:
    """Be a rank, and end the process. It computes on, whoever reads what it says."""
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
        line = Line(connection, start.config["distributed_timeout_seconds"])
    except RankError:  # rank 0 is gone
        _leave(1)
    rank = _Rank(start, line)
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
    """Whatever other threads do."""
    last_words()
    os._exit(status)


class _Rank:
    def __init__(self, start: Start, line: Line) -> None:
        self._number, self._line, self._with_rank_0 = start.rank, line, start.with_rank_0
        self._config = EngineConfig.create(start.config)
        self._adapters: HeldAdapters | None = None
        self._store: DiskStore | Tiers | None = None
        self._fetcher: BlockFetcher | None = None
        self._told_to_end = threading.Event()
        self._heard: SimpleQueue[Message] = SimpleQueue()
        for task in (self._beat, self._hear, self._outlive_nobody):
            threading.Thread(target=task, daemon=True).start()

    @memory_or_refusal()
    def live(self) -> NoReturn:
        """Join the others, load, and compute what rank 0 tells."""
        config, line = self._config, self._line
        check_store(config)
        server = listen_for_decoders(config, self._number)
        instructions = choose_instructions(config.cpu_isa)
        directory = self._directory(self._expect("meet"))
        line.send("facts", facts=facts_of(config, directory, instructions.name))
        go = self._expect("go")
        group = join_group(go["join"], self._number, config, instructions.name)
        keep_what_steps_take()
        runtime = OnCPU(config.swap_path, instructions, go["ranks_here"])
        model = load(config, directory, runtime.device, runtime.admit, instructions.name, group)
        dtype = kv_dtype(config, model)
        limits = limits_of(config, cache_shape(model, dtype))
        runtime.promise(0, 0)  # what loading took is given back
        line.send("loaded", weight_bytes=model.weight_bytes)
        self._expect("memory")
        line.send("memory", free=runtime.memory_budget(model, limits, dtype).free)
        pool = self._expect("pool")
        kv_groups = tuple(map(KVGroup.of_values, pool["kv_groups"]))
        limits = replace(limits, kv_groups=kv_groups, max_model_len=pool["max_model_len"])
        if config.enable_lora:
            check = adapter_check(model, instructions.name, config.max_lora_rank)
            self._adapters = HeldAdapters(check)
        weights = None if self._adapters is None else self._adapters.weights
        cache = cache_shape(model, dtype)
        with runtime.settling():
            runtime.promise(*kept_and_files(config, limits, cache))
        forms = forms_of(runtime.kernels, model, dtype)
        kept = directory, limits, cache, forms, self._number
        self._store = open_store(config, *kept)
        transfer, shelf = begin_transfer(config, server, *kept)
        self._fetcher = transfer if isinstance(transfer, BlockFetcher) else None
        source = shelf or self._store
        executor = runtime.executor(model, limits, dtype, None, weights, source)
        if pool["warm_up"]:
            runtime.touch_pool()
        line.send("ready")
        follow(group, executor.worker, executor.adapters, source)

    def report(self, error: QuireError) -> None:
        """Tell rank 0 and, on another machine, whoever looks; unless all are ending."""
        self._let_end()
        if not self._with_rank_0:
            logger.error("%s", error)
        try:
            self._line.send("error", type=type(error).__name__, text=str(error))
        except RankError:
            _leave(1)

    def _directory(self, met: Message) -> Path:
        if self._with_rank_0:
            return Path(met["directory"])
        return locate(self._config)

    def _expect(self, kind: str) -> Message:
        message = self._heard.get()
        if message["kind"] != kind:
            raise RankError(f"rank 0 said {message['kind']!r} instead of {kind!r}")
        return message

    # -- in threads of their own -----------------------------------------------------------------

    def _beat(self) -> None:
        """Let rank 0 know that this process gets on."""
        seconds = min(_LONGEST_BEAT, self._config.distributed_timeout_seconds / _BEATS)
        while True:
            time.sleep(seconds)
            self._line.send("beat")

    def _hear(self) -> None:
        """Until rank 0 is gone, and so this process has nothing more to do."""
        status = 1
        patience: float | None = STARTING  # until all ranks have come
        try:
            while True:
                message = self._line.receive(patience)
                patience = None  # it may have nothing to say
                kind = message["kind"]
                if kind in ("adapter", "fetch"):
                    act = self._load if kind == "adapter" else self._fetch
                    threading.Thread(target=act, args=(message,), daemon=True).start()
                elif kind == "refused":
                    self._say(f"rank 0 refuses this rank: {message.get('why')}")
                    break
                elif kind == "end":
                    self._told_to_end.set()
                    self._put_away()
                    status = 0
                    break
                else:
                    self._heard.put(message)
        except RankError as error:
            self._say(f"rank 0 is gone: {error}")
        finally:
            _leave(status)

    def _put_away(self) -> None:
        """Write what is to be stored, which nobody waits for who is not told to end."""
        if self._store is not None:
            self._store.close()

    def _let_end(self) -> None:
        """Whoever else ends the process leaves that to who has been told to."""
        if self._told_to_end.is_set():
            threading.Event().wait()

    def _say(self, text: str) -> None:
        if not self._with_rank_0:
            logger.error("%s", text)

    def _load(self, message: Message) -> None:
        assert self._adapters is not None
        self._line.send("adapter", error=self._adapters.load(message))

    def _fetch(self, message: Message) -> None:
        """This rank's part of blocks; what does not come is computed."""
        assert self._fetcher is not None
        names = list(map(bytes.fromhex, message["names"]))
        self._fetcher.fetch_part(message["host"], message["port"], names)
        self._line.send("fetched", number=message["number"])

    def _outlive_nobody(self) -> NoReturn:
        """End with whoever has started this process."""
        sys.stdin.buffer.read()
        self._told_to_end.wait(_LAST_WORD)
        self._let_end()
        _leave(1)
