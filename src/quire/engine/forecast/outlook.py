"""When requests that wait have their first tokens and their last, if all goes on as it does now.

Not step by step: from one that changes who computes what to the next such one. Who is let in, and
who gives way where blocks run short, is as the scheduler has it.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.engine.forecast.step_times import StepWork

_MOST_EVENTS = 256  # after which nothing is said
_MOST_LATER = 96  # events after the first token; from then on the pace stays as it is


class Expected(NamedTuple):
    """Seconds from a request's arrival to its first token and to its end."""

    first_token: float
    end: float


@dataclass(slots=True, eq=False)
class TaskAhead:
    """A request, as far as it matters here.

    prompt: tokens to be computed before the next one is written. context: tokens before these.
    output: steps in which it then writes. width: its sequences. begun: it has its first token.
    blocks: that it holds. take: that it takes to be let in; None: those of its tokens.
    kept: that it gave up, and that may be found again. late: seconds to bring its blocks back.
    """

    prompt: int
    context: int
    output: int
    width: int = 1
    begun: bool = False
    blocks: float = 0.0
    take: float | None = None
    kept: float = 0.0
    late: float = 0.0
    # Where it stands, as time goes on:
    number: int = 0  # its place
    mark: float = 0.0  # blocks that had been taken when it gave way
    since: int = 0  # the step from which on it writes
    end: int = 0  # the step after which it has written all; 0: it does not write
    entered: float | None = None  # these are times
    first_token: float | None = None
    ended: float | None = None


class Supply(NamedTuple):
    """What there is for all: sequences, tokens of a step, free blocks and their size in tokens.

    found: whether what was computed is found again.
    swap: seconds of a block's way to the host, or back; None: who gives way computes its tokens
    again. compute: seconds of a token's computation; infinite: who gives way is swapped.
    """

    sequences: int
    step_tokens: int
    free: float
    block_size: int
    found: bool = True
    swap: float | None = None
    compute: float = math.inf


class Coming(NamedTuple):
    """Requests that are still to come: seconds between two, tokens to be computed and written."""

    apart: float
    prompt: int
    output: int


class Outlook:
    """Goes on in time with the tasks that run, and with those that wait, in their order."""

    def __init__(
        self,
        running: Iterable[TaskAhead],
        waiting: Iterable[TaskAhead],
        room: Supply,
        seconds: Callable[[StepWork], float],
    ) -> None:
        self._room, self._seconds = room, seconds
        self._coming: Coming | None = None
        self._running: list[TaskAhead] = []  # in order of their numbers, as the next two
        self._reading: list[TaskAhead] = []
        self._waiting: list[TaskAhead] = []
        self._writing: list[tuple[int, int, TaskAhead]] = []  # by the step in which they end
        self._time = self._pace = 0.0
        self._step = self._width = self._count = self._come = self._queued = 0
        self._rows = self._context = 0  # of those that write
        self._free, self._taken = room.free, 0.0
        self._phases = [0] * room.block_size  # rows that take a block in a step, by its remainder
        for task in running:
            self._enter(self._numbered(task))
        for task in waiting:
            self._waiting.append(self._numbered(task))

    def of(self, own: TaskAhead, coming: Coming | None = None) -> Expected | None:
        """What comes of a task that runs or waits; None: nobody can tell so far ahead.

        coming: others, who stand behind it, and so matter to its end alone.
        """
        self._go_to(own, coming)
        return self.found(own)

    def found(self, task: TaskAhead) -> Expected | None:
        """What has come of another by then; None: that was not far enough to tell."""
        if task.first_token is None:
            return None
        if task.ended is not None:
            return Expected(task.first_token, task.ended)
        left = task.end - self._step if task.end else task.output
        return Expected(task.first_token, self._time + left * self._pace)

    def _go_to(self, own: TaskAhead, coming: Coming | None) -> None:
        """To its end, or as far as one looks."""
        for _ in range(_MOST_EVENTS):
            self._let_in()
            if not self._running:
                return
            self._go_on()
            if own.first_token is not None:
                break
        else:
            return
        self._coming = coming
        for _ in range(_MOST_LATER):
            if own.ended is not None:
                return
            self._receive()
            self._let_in()
            self._go_on()

    # -- who runs ------------------------------------------------------------------------------

    def _numbered(self, task: TaskAhead) -> TaskAhead:
        self._count += 1
        task.number = self._count
        return task

    def _receive(self) -> None:
        """Queue those that have come by now: of a burst, as many as may be let in at once."""
        if self._coming is not None:
            apart, prompt, output = self._coming
            self._come = max(self._come, int(self._time / apart))
            while self._queued < self._come and len(self._waiting) < self._room.sequences:
                self._queued += 1
                self._waiting.append(self._numbered(TaskAhead(prompt, 0, output)))

    def _let_in(self) -> None:
        while self._waiting:
            task = self._waiting[0]
            take = -(-(task.prompt + task.context) // self._room.block_size) - task.blocks
            if task.take is not None:
                take = task.take
            if self._running:
                fits = self._width + task.width <= self._room.sequences
                if not fits or take + self._width > self._free:
                    return
            del self._waiting[0]
            self._time += task.late
            if task.kept:  # others take the last of them first
                kept = max(0.0, task.kept - (self._taken - task.mark))
                whole = task.prompt + task.context
                task.context = min(int(kept) * self._room.block_size, whole - 1)
                task.prompt = whole - task.context
            task.late, task.kept, task.take = 0.0, 0.0, None
            task.blocks += take
            self._take(take)
            task.entered = self._time
            self._enter(task)

    def _enter(self, task: TaskAhead) -> None:
        _insert(self._running, task)
        self._width += task.width
        if task.begun and task.prompt <= 1:
            self._write(task)
        else:
            _insert(self._reading, task)

    def _write(self, task: TaskAhead) -> None:
        task.since, task.end = self._step, self._step + max(task.output, 1)
        heapq.heappush(self._writing, (task.end, task.number, task))
        self._rows += task.width
        self._context += task.width * task.context
        self._phases[(task.since - task.context) % self._room.block_size] += task.width

    def _give_way(self) -> None:
        """Preempt the request that was admitted last."""
        task, room = self._running[-1], self._room
        whole = task.prompt + task.context
        if task.end:
            whole = task.context + self._step - task.since + 1
            task.output = task.end - self._step
        held = self._leave(task)
        if room.swap is not None and 2 * held * room.swap <= whole * room.compute:
            task.context, task.prompt = whole - 1, 1
            task.late, self._time = held * room.swap, self._time + held * room.swap
        else:
            task.context, task.prompt = 0, whole
            task.kept, task.mark = held if room.found else 0.0, self._taken
        _insert(self._waiting, task)

    def _leave(self, task: TaskAhead) -> float:
        """Take a task out of those that run; returns the blocks that it frees."""
        self._running.remove(task)
        self._width -= task.width
        held, size = task.blocks, self._room.block_size
        if task.end:
            grown = task.context + self._step - task.since
            held += task.width * (-(-grown // size) - -(-task.context // size))
            self._rows -= task.width
            self._context -= task.width * grown
            self._phases[(task.since - task.context) % size] -= task.width
            task.end = 0
        else:
            self._reading.remove(task)
        task.blocks = 0.0
        self._free += held
        return held

    # -- steps ---------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """To the end of a prompt, or of what somebody writes, or until blocks run short."""
        while not (fitting := self._fitting()) and len(self._running) > 1:
            self._give_way()
        most = self._room.step_tokens
        budget = max(1, most - self._rows, most // 2)
        count = max(1, self._steps(budget, fitting or 1))  # a last chunk may be under way
        read, done = self._read(count * budget)
        tokens = self._rows + read.tokens / count
        attended = self._context + self._rows * count / 2 + read.attended / count
        work = StepWork(1.0, self._rows + read.sequences / count, tokens, attended / 1000)
        self._pace = self._seconds(work)
        self._time += count * self._pace
        self._take(self._needed(count))
        self._step += count
        self._context += self._rows * count
        for task in done:
            self._has_read(task)
        while self._writing and self._writing[0][0] <= self._step:
            end, _, task = heapq.heappop(self._writing)
            if task.end == end:  # else it has given way since
                self._leave(task)
                task.ended = self._time

    def _steps(self, budget: int, most: int) -> int:
        while self._writing and self._writing[0][2].end != self._writing[0][0]:
            heapq.heappop(self._writing)
        if self._writing:
            most = min(most, self._writing[0][0] - self._step)
        if self._reading:
            most = min(most, -(-self._reading[0].prompt // budget))
        if self._coming is not None and self._pace:
            left = (self._come + 1) * self._coming.apart - self._time
            most = min(most, math.ceil(left / self._pace))
        return most

    def _fitting(self) -> int:
        """Steps for which there are blocks."""
        if not self._rows:
            return 1 << 30
        size = self._room.block_size
        rounds, left = divmod(self._free, self._rows)
        steps = int(rounds) * size  # in which each row takes ``rounds`` blocks
        for step in range(self._step, self._step + size):
            left -= self._phases[step % size]
            if left < 0:
                break
            steps += 1
        return steps

    def _needed(self, steps: int) -> int:
        """Blocks that are taken in the next steps."""
        size = self._room.block_size
        rounds, further = divmod(steps, size)
        last = range(self._step, self._step + further)
        return rounds * self._rows + sum(self._phases[step % size] for step in last)

    def _take(self, blocks: float) -> None:
        self._free -= blocks
        self._taken += blocks

    def _read(self, tokens: int) -> tuple[_Read, list[TaskAhead]]:
        """Tokens of the prompts that are read, one after the other; whose have come to an end."""
        left, sequences, attended = tokens, 0, 0.0
        done = []
        for task in self._reading:
            if left <= 0:
                break
            count = min(left, task.prompt)
            attended += count * (task.context + count / 2)
            left -= count
            sequences += 1
            task.prompt -= count
            task.context += count
            if not task.prompt:
                done.append(task)
        return _Read(tokens - left, sequences, attended), done

    def _has_read(self, task: TaskAhead) -> None:
        """A prompt has been read, and with it the next token is there."""
        if not task.begun:
            task.begun, task.first_token = True, self._time
        task.output -= 1
        if task.output > 0:
            self._reading.remove(task)
            self._write(task)
        else:
            self._leave(task)
            task.ended = self._time


class _Read(NamedTuple):
    tokens: int
    sequences: int
    attended: float


def _insert(tasks: list[TaskAhead], task: TaskAhead) -> None:
    """Put it in its place, mostly the last one."""
    if tasks and tasks[-1].number > task.number:
        insort(tasks, task, key=_number)
    else:
        tasks.append(task)


def _number(task: TaskAhead) -> int:
    return task.number
