"""How an engine is watched without keeping it from its work.

Questions to it take a bounded share of its time. All blocks of the pool are looked at ten times a
second, once for all who watch.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple

from quire.core.errors import QuireError
from quire.engine.async_engine import AsyncEngine
from quire.engine.dashboard import BlockTracker, delta, snapshot
from quire.http.answers.rendering import encode
from quire.http.errors import TooManyWatchersError

_EVERY = 0.1  # seconds between frames
_MOST = 16  # watchers
_UNREAD = 20  # frames that a watcher may be behind; then it gets a fresh snapshot once it reads
_AT_ONCE = 2048  # blocks to look at between two steps: some 2 ms
_LINGER = 10.0  # seconds for which the tracker is kept when nobody watches any more
_RETRY_AFTER = 5.0
_QUESTIONS = 64  # that wait
_LONGEST = 0.002  # seconds between two steps, from which on no further question is put
_SHARE = 1 / 50
"""Of the engine's time, for those who ask."""


class Frames(NamedTuple):
    """What one look gave: None where nothing has changed, or nobody needs a snapshot.

    pressure: of the same moment, as JSON; None if no step has been since the look before.
    """

    snapshot: bytes | None
    delta: bytes | None
    pressure: bytes | None = None


class BlockLook:
    """Looks at an engine's blocks, in its thread: a tracker while somebody watches.

    pressure: reads what goes with them.
    """

    def __init__(self, engine: AsyncEngine, pressure: Callable[[], object] = dict) -> None:
        self._engine = engine
        self._pressure = pressure
        self._tracker: BlockTracker | None = None
        self._number = 0
        self._step = -1

    async def frames(self, *, whole: bool) -> Frames:
        """The blocks between two steps; ``whole``: a snapshot too."""
        while (found := await self._engine.call(lambda: self._look(whole=whole))) is None:
            pass  # steps were taken in between
        return found

    async def close(self) -> None:
        with contextlib.suppress(QuireError):  # the engine has gone
            await self._engine.call(self._end)

    def _look(self, *, whole: bool) -> Frames | None:
        tracker = self._tracker = self._tracker or BlockTracker(self._engine.engine.scheduler)
        if not tracker.update(_AT_ONCE):
            return None
        blocks, changed = tracker.blocks, tracker.changed
        tracker.changed = set()
        self._number += bool(changed)
        moment = self._number, self._engine.engine.stats.num_steps, time.time()
        is_new, self._step = whole or moment[1] != self._step, moment[1]
        return Frames(
            snapshot(blocks, *moment) if whole else None,
            delta(blocks, changed, *moment) if changed else None,
            encode(self._pressure()) if is_new or changed else None,
        )

    def _end(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None


class BlockWatcher:
    """One watcher. pressure: it gets frames and pressure together, as JSON."""

    def __init__(self, *, pressure: bool = False) -> None:
        self._pressure = pressure
        self._frames: deque[bytes] = deque()
        self._lost = True  # has no snapshot that the next delta would go with
        self._waits = False  # for a frame: all that it was given has been read
        self._ready = asyncio.Event()
        self._failure: QuireError | None = None

    async def frame(self, seconds: float | None = None) -> bytes | None:
        """The next one; None if there is none within ``seconds``. QuireError: no more come."""
        self._waits = not self._frames
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ready.wait(), seconds)
        self._waits = False
        if self._frames:
            frame = self._frames.popleft()
            if not self._frames and self._failure is None:
                self._ready.clear()
            return frame
        if self._failure is not None:
            raise self._failure
        return None

    @property
    def needs_snapshot(self) -> bool:
        return self._lost and self._waits

    def put(self, frames: Frames) -> None:
        whole = self.needs_snapshot and frames.snapshot is not None
        self._lost = self._lost and not whole
        frame = self._formed(frames.snapshot if whole else frames.delta, frames.pressure)
        if frame is not None and not self._lost:
            if len(self._frames) < _UNREAD:
                self._add(frame)
            else:
                self._frames.clear()
                self._ready.clear()
                self._lost = True

    def _formed(self, frame: bytes | None, pressure: bytes | None) -> bytes | None:
        if not self._pressure or pressure is None:
            return frame
        blocks = b"null" if frame is None else b'"%b"' % base64.b64encode(frame)
        return b'{"blocks":%b,"pressure":%b}' % (blocks, pressure)

    def _add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._ready.set()

    def fail(self, failure: QuireError) -> None:
        self._failure = failure
        self._ready.set()


class BlockWatch:
    """Gives every watcher a snapshot, then what changes. For one event loop.

    A watcher that does not read costs nothing: what it has missed is dropped, and it goes on from
    a snapshot when it reads again.
    """

    def __init__(self, engine: AsyncEngine, pressure: Callable[[], object] = dict) -> None:
        self._look = BlockLook(engine, pressure)
        self._watchers: set[BlockWatcher] = set()
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, *, pressure: bool = False) -> Iterator[BlockWatcher]:
        """Watch. TooManyWatchersError: no further watcher is allowed."""
        if len(self._watchers) >= _MOST:
            raise TooManyWatchersError(f"{_MOST} watch the blocks already", _RETRY_AFTER)
        watcher = BlockWatcher(pressure=pressure)
        self._watchers.add(watcher)
        self._came.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """Stop looking at blocks."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while await self._somebody():
                begun = time.monotonic()
                whole = any(watcher.needs_snapshot for watcher in self._watchers)
                frames = await self._look.frames(whole=whole)
                for watcher in self._watchers:
                    watcher.put(frames)
                await asyncio.sleep(max(_EVERY / 2, begun + _EVERY - time.monotonic()))
        except QuireError as error:
            for watcher in self._watchers:
                watcher.fail(error)
        finally:
            await self._look.close()

    async def _somebody(self) -> bool:
        """Whether somebody watches, or comes soon."""
        if not self._watchers:
            self._came.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._came.wait(), _LINGER)
        return bool(self._watchers)


class _Question(NamedTuple):
    """read: gives the answer, in the engine's thread. answers: for all who wait for it."""

    read: Callable[[], object]
    answers: list[asyncio.Future[bytes]]


class Queries:
    """Asks an engine, between two steps, as many questions as there is time for; for one event
    loop.

    A question that waits already is not put twice: all who ask it get its answer. Few may wait, so
    that nobody who asks and leaves keeps others from asking.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._waiting: dict[Hashable, _Question] = {}
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0  # when questions may be put again

    async def ask(self, question: Hashable, read: Callable[[], object]) -> bytes:
        """What ``read`` returns between two steps, as JSON, or raises. question: names it.

        TooManyWatchersError: too many others wait.
        """
        asked = self._waiting.get(question)
        if asked is None:
            if len(self._waiting) >= _QUESTIONS:
                raise TooManyWatchersError(f"{_QUESTIONS} questions wait already", _RETRY_AFTER)
            asked = self._waiting[question] = _Question(read, [])
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asked.answers.append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._put_all())
        return await answer

    async def _put_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(max(0.0, self._next - time.monotonic()))
            asked, self._waiting = self._waiting, {}
            try:
                found, took = await self._engine.call(partial(_put, [*asked.values()]))
            except Exception as error:  # as if the engine has gone: nobody waits for ever
                found, took = [error] * len(asked), 0.0
            self._next = time.monotonic() + took * (1 / _SHARE - 1)
            for one, given in zip(asked.values(), found, strict=False):
                _answer(one, given)
            left = dict(islice(asked.items(), len(found), None))
            for question, one in left.items():  # those who ask it now wait for the same
                newer = self._waiting.pop(question, None)
                one.answers.extend(newer.answers if newer is not None else ())
            self._waiting = {**left, **self._waiting}


def _put(questions: Sequence[_Question]) -> tuple[list[object], float]:
    """The answers, or errors, of as many as there is time for, one at least; seconds in all."""
    begun, found, took = time.perf_counter(), list[object](), 0.0
    for one in questions:
        try:
            found.append(one.read())
        except Exception as error:
            found.append(error)
        took = time.perf_counter() - begun
        if took > _LONGEST:
            break
    return found, took


def _answer(question: _Question, found: object) -> None:
    """Give it to all who still wait."""
    answer = b""
    if not isinstance(found, Exception):
        try:
            answer = encode(found)
        except Exception as error:
            found = error
    for one in question.answers:
        if one.done():  # its asker has left
            continue
        if isinstance(found, Exception):
            one.set_exception(found)
        else:
            one.set_result(answer)
