"""One life of a server: a script happens to it, and everything is checked after every event."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import quire
from quire.text.tokenizer import load_tokenizer
from world.clients import Clients
from world.exchange import Answer
from world.faults import Weather
from world.loop import VirtualLoop
from world.oracle import Oracle
from world.script import Ask, Event, Fault, Nonsense, Script, Talk
from world.server import VirtualServer

_TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
_ORACLE = Oracle(_TOKENIZER)
_RESTART = 20.0  # seconds that a supervisor takes
_SETTLE = 120.0  # seconds after which nothing of a request may be left


class Life:
    """Lets a script happen. ``transcript``: all that could be seen of it, the same every time."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._rng = random.Random(script.seed)  # of delays that no event decides
        self.transcript: list[str] = []
        self.weather = Weather()
        self.server: VirtualServer
        self.num_servers = 0
        self._restarts: list[asyncio.Task[None]] = []

    def run(self) -> None:
        """AssertionError where anybody is hurt who should not be."""
        loop = VirtualLoop(lambda: self._rng.random() * 0.02)
        try:
            loop.run_until_complete(self._live())
        finally:
            loop.run_until_complete(_cancel_others())
            loop.close()

    def note(self, what: str) -> None:
        self.transcript.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    def excused(self, answer: Answer, server: VirtualServer) -> bool:
        """Whether something has happened, while it was under way, that explains an error."""
        struck = any(answer.asked <= at <= answer.ended for at in self.weather.strikes)
        return struck or server.ends

    def jumped(self, answer: Answer) -> bool:
        """Whether the clock was set while it was under way."""
        return any(answer.asked <= at <= answer.ended for at in self.weather.jumps)

    # -- what happens ------------------------------------------------------------------------------

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        await self._start()
        clients = Clients(self, _ORACLE)
        tasks: list[asyncio.Task[None]] = []
        for event in self.script.events:
            await asyncio.sleep(event.at - loop.time())
            self.note(repr(event))
            tasks.append(asyncio.create_task(self._happen(clients, event)))
        for task in tasks:
            await task
        for restart in self._restarts:
            await restart
        await asyncio.sleep(_SETTLE)
        self.server.check_idle()
        await self.server.end(0.0)

    async def _start(self) -> None:
        self.weather.clear()
        self.num_servers += 1
        self.server = VirtualServer(
            self.script.settings, _TOKENIZER, self.weather, self._rng, self._supervise
        )
        await self.server.start()

    def _supervise(self) -> None:
        """A server has ended, or is about to: another one takes its place."""
        self.note("the server ends")
        self._restarts.append(asyncio.create_task(self._restart()))

    async def _restart(self) -> None:
        await asyncio.sleep(_RESTART)
        await self._start()
        self.note("a server starts")

    def _happen(self, clients: Clients, event: Event) -> Coroutine[Any, Any, None]:
        match event:
            case Ask():
                return clients.ask(event)
            case Talk():
                return clients.talk(event)
            case Nonsense():
                return clients.talk_nonsense(event)
            case Fault():
                return self._go_wrong(clients, event)

    async def _go_wrong(self, clients: Clients, event: Fault) -> None:
        weather, now = self.weather, asyncio.get_running_loop().time()
        match event.what:
            case "step raises":
                weather.steps_that_raise += int(event.amount)
            case "step out of memory":
                weather.steps_without_memory += int(event.amount)
            case "not a number":
                weather.steps_not_a_number += int(event.amount)
            case "tokenizer out of memory":
                weather.texts_without_memory += int(event.amount)
            case "late":
                weather.late = event.amount
            case "swap fails":
                weather.swap_fails_until = now + event.amount
            case "swap lies":
                weather.swap_lies_until = now + event.amount
            case "disk full":
                weather.disk_is_full = True
            case "clock jumps":
                weather.clock_offset += event.amount
                weather.jumps.append(now)
            case "engine dies":
                weather.scheduler_dies = True
            case "drain":
                if not self.server.ends:
                    await self.server.end(event.amount)
                    self._supervise()
        await clients.look()


async def _cancel_others() -> None:
    """End what a life that has failed has left behind."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
