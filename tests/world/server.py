"""The real server on the virtual loop: app, engine and scheduler, over the fake model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from quire.capabilities.fairness import accounts_of
from quire.capabilities.sessions import SessionManager, SessionRules
from quire.core.protocol import RecoveryCosts
from quire.core.scheduling import BatchLimits, Queueing, Recovery, Scheduler
from quire.engine.capabilities import Capabilities
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.outputs import Delta
from quire.engine.recorder import RequestRecorder
from quire.engine.thread import EngineThread
from quire.engine.waiting_room import QueueLimits
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.text.tokenizer import Tokenizer
from support.fake_model import EOS
from support.invariants import check_allocator
from world.exchange import Answer, Exchange
from world.faults import (
    StormyAllocator,
    StormyExecutor,
    StormyPath,
    StormyPools,
    StormyTokenizer,
    Weather,
)
from world.script import KEYS
from world.settings import Settings
from world.thread import VirtualThread

MODEL = "demo"
MAX_MODEL_LEN = 200
BLOCK = 4
_VOCAB = 4096


class VirtualServer:
    """One process of the server, from its start to its end.

    died: called once the engine is dead.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        weather: Weather,
        rng: random.Random,
        died: Callable[[], None],
    ) -> None:
        self.ends = False  # it drains, is dead, or has ended
        self.answers: set[Exchange] = set()  # under way
        self._weather = weather
        self._rng = rng
        self._died = died
        self.path = StormyPath(weather)
        self.engine = self._engine(settings, tokenizer, weather)
        config = ServerConfig(
            api_key=KEYS[1:],
            request_read_timeout=settings.request_read_timeout,
            shutdown_timeout=settings.shutdown_timeout,
        )
        self._shutdown_timeout = config.shutdown_timeout
        self.app = create_app(self.engine, [MODEL], config, self._thread)
        self._lifespan = self.app.router.lifespan_context(self.app)

    def _engine(self, settings: Settings, tokenizer: Tokenizer, weather: Weather) -> Engine:
        loop = asyncio.get_running_loop()
        sizes = settings.num_blocks, BLOCK, settings.num_host_blocks
        self.allocator = StormyAllocator(*sizes)
        self.allocator.weather = weather
        scheduler = Scheduler(
            self.allocator,
            BatchLimits(settings.max_num_seqs, settings.max_num_batched_tokens),
            Queueing(settings.policy, settings.max_queue_time, accounts_of(settings.policy)),
            Recovery(settings.preemption, RecoveryCosts(0.01, 0.01)),
        )
        input_processor = InputProcessor(
            StormyTokenizer(tokenizer, weather),
            ModelOutputs(_VOCAB, [EOS]),
            max_model_len=MAX_MODEL_LEN,
            seed=0,
        )
        path: Any = self.path

        def clock() -> float:
            return loop.time() + weather.clock_offset

        rules = SessionRules(
            settings.session_timeout, MAX_MODEL_LEN, max_num_sessions=settings.max_num_sessions
        )
        engine = Engine(
            scheduler,
            StormyExecutor(StormyPools(sizes, weather), weather),
            input_processor,
            capabilities=Capabilities(SessionManager(rules, clock)),
            queue=QueueLimits(settings.max_num_waiting),
            clock=clock,
        )
        engine.events.add(RequestRecorder(path, BLOCK, loop.time()))
        return engine

    def _thread(
        self,
        engine: Engine,
        took_step: Callable[[list[Delta]], None],
        ended: Callable[[BaseException | None], None],
    ) -> EngineThread:
        return VirtualThread(engine, took_step, ended, self._step_seconds, self._after_turn)

    # -- its life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._lifespan.__aenter__()

    async def end(self, patience: float) -> None:
        """SIGTERM, and once more after ``patience`` seconds."""
        self.ends = True
        drain, loop = self.app.state.drain, asyncio.get_running_loop()
        drain.begun = True
        deadline = loop.time() + min(patience, self._shutdown_timeout)
        while drain.running and loop.time() < deadline:
            await asyncio.sleep(0.1)
        drained = not drain.running and self.app.state.service.engine.healthy
        await self._lifespan.__aexit__(None, None, None)
        self.engine.close()
        if drained:
            self.check_idle()

    async def call(self, exchange: Exchange) -> Answer:
        self.answers.add(exchange)
        try:
            return await exchange.run(self.app)
        finally:
            self.answers.discard(exchange)

    def _after_turn(self) -> None:
        if not self.app.state.service.engine.healthy:
            if not self.ends:
                assert self._weather.scheduler_dies, "the engine died without a reason"
                self.ends = True
                self._died()
        else:
            self.check()

    # -- what is true ------------------------------------------------------------------------------

    def check(self) -> None:
        """What is true at any moment."""
        check_allocator(self.allocator)
        asked = self.app.state.service.engine._delivery.collectors.keys()
        assert self.engine._requests.keys() <= asked, "nobody waits for this request any more"
        assert len(self.engine.scheduler.sessions) <= self.engine.sessions.rules.max_num_sessions

    def check_idle(self) -> None:
        """What is true when nobody has asked for anything for a while."""
        self.check()
        usage, scheduler = self.allocator.usage(), self.engine.scheduler
        assert not self.engine.has_work, "a request is left"
        assert not (self.engine._requests or self.app.state.service.engine._delivery.collectors), (
            "so is its story"
        )
        assert not (scheduler.running or scheduler.waiting)
        assert not self.app.state.drain.running
        assert not self.engine.waiting_room._coming
        assert not self.app.state.service.bodies._unread
        held = self.allocator.blocks_held(
            [seq_id for group in scheduler.sessions.resting() for seq_id in group.tables()]
        )[0]
        free = (usage.cached + usage.free) // BLOCK
        assert free + held == self.allocator.device.num_blocks, "blocks are lost"

    def _step_seconds(self) -> float:
        late, self._weather.late = self._weather.late, 0.0
        return late + self._rng.choice([0.02, 0.05, 0.4])
