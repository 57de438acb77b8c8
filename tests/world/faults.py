"""The parts of a server that fail when the script says so."""

from __future__ import annotations

import asyncio
import errno
import io
from array import array
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from quire.core.memory import BlockMove, MoveKind, PagedAllocator
from quire.core.protocol import Outcome, PendingStep, Step
from quire.text.chat_template import Message
from quire.text.tokenizer import Tokenizer
from support.fake_model import FakeExecutor


class Weather:
    """What goes wrong at the moment. Shared by all the parts of one life."""

    def __init__(self) -> None:
        self.strikes: list[float] = []  # when a request may have been hurt
        self.jumps: list[float] = []  # when the clock was set
        self.clock_offset = 0.0
        self.clear()

    def clear(self) -> None:
        """A new process begins in fair weather."""
        self.steps_that_raise = 0
        self.steps_without_memory = 0
        self.steps_not_a_number = 0
        self.texts_without_memory = 0
        self.late = 0.0  # seconds that the next step takes more
        self.scheduler_dies = False
        self.disk_is_full = False
        self.swap_fails_until = 0.0
        self.swap_lies_until = 0.0

    def strike(self) -> None:
        self.strikes.append(asyncio.get_running_loop().time())


class StormyPools(FakeExecutor):
    """The fake model's pools, over a disk that fails or lies; what comes back is checked."""

    def __init__(self, sizes: tuple[int, int, int], weather: Weather) -> None:
        super().__init__(*sizes)
        self._weather = weather
        self._sums: dict[int, int] = {}  # of the host's blocks, as the swap file keeps them

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        now = asyncio.get_running_loop().time()
        (layer,), failed = self.layers, []
        for move in moves:
            fails = move.kind is not MoveKind.COPY and now < self._weather.swap_fails_until
            if move.kind is MoveKind.SWAP_IN:
                fails |= _sum(layer.host[move.source]) != self._sums.get(move.source)
            layer.move(move, fails)
            if fails:
                failed.append(move)
            elif move.kind is MoveKind.SWAP_OUT:
                self._sums[move.target] = _sum(layer.host[move.target])
                if now < self._weather.swap_lies_until:
                    layer.host[move.target][0] ^= 1
        return failed


def _sum(block: Sequence[int]) -> int:
    return crc32(array("q", block).tobytes())


class StormyExecutor:
    """The fake model's executor, in bad weather."""

    def __init__(self, fake: FakeExecutor, weather: Weather) -> None:
        self._fake = fake
        self._weather = weather

    def submit(self, step: Step) -> PendingStep:
        weather = self._weather
        known = self._fake.roster.follow(step)
        if weather.steps_that_raise:
            weather.steps_that_raise -= 1
            weather.strike()
            raise RuntimeError("the device is on fire")
        if weather.steps_without_memory:
            weather.steps_without_memory -= 1
            weather.strike()
            raise MemoryError("not a byte more")
        result = self._fake.compute(step, known)
        sampled = [seq_id for seq_id, outcome in result.outcomes.items() if outcome.tokens]
        if weather.steps_not_a_number and sampled:
            weather.steps_not_a_number -= 1
            weather.strike()
            result.outcomes[sampled[0]] = Outcome(failure="not a number")
        return PendingStep(step, lambda: result)


class StormyAllocator(PagedAllocator):
    """An allocator with a bug that shows once, outside of any step."""

    weather: Weather

    def advance(self, now: float) -> None:
        if self.weather.scheduler_dies:
            raise RuntimeError("the scheduler has lost its mind")
        super().advance(now)


class StormyTokenizer:
    """A tokenizer that is refused memory now and then."""

    def __init__(self, tokenizer: Tokenizer, weather: Weather) -> None:
        self._tokenizer = tokenizer
        self._weather = weather
        self.longest_token = tokenizer.longest_token
        self.special_ids = tokenizer.special_ids
        self.own_texts, self.end_ids = tokenizer.own_texts, tokenizer.end_ids
        self.chat_template = tokenizer.chat_template
        self.response_template = tokenizer.response_template

    def count(self, text: str) -> int:
        return self._tokenizer.count(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self._weather.texts_without_memory:
            self._weather.texts_without_memory -= 1
            self._weather.strike()
            raise MemoryError("not a byte more")
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        return self._tokenizer.apply_chat_template(messages, variables)


class StormyPath:
    """Where a trace is written."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather

    def __str__(self) -> str:
        return "trace.jsonl"

    def open(self, mode: str, buffering: int) -> StormyFile:
        self.file = StormyFile(self._weather)
        return self.file


class StormyFile(io.BytesIO):
    """A trace's file: writes are cut short now and then, until the disk is full."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self._weather = weather

    def write(self, data: Any) -> int:
        if self._weather.disk_is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(data)[: max(1, len(data) // 2)])
