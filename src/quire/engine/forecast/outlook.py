"""When a request that waits has its first token and its last, if all goes on as it does now.

Not step by step: from one that changes who computes what to the next such one.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.engine.forecast.step_times import StepWork

_MOST_EVENTS = 256  # after which nothing is said


class Expected(NamedTuple):
    """Seconds from a request's arrival to its first token and to its end."""

    first_token: float
    end: float


@dataclass(slots=True, eq=False)
class TaskAhead:
    """A request, as far as it matters here.

    prompt: tokens to be computed before the next one is written. context: tokens before these.
    output: steps in which it then writes. width: its sequences. begun: it has its first token.
    """

    prompt: int
    context: int
    output: int
    width: int = 1
    begun: bool = False

    @property
    def tokens(self) -> int:
        """That it holds once its prompt is computed."""
        return self.prompt + self.context


class MostAtOnce(NamedTuple):
    """What there is for all: sequences, tokens of a step, tokens of the pool."""

    sequences: int
    step_tokens: int
    pool_tokens: float


class Outlook:
    """Goes on in time with the tasks that run, and with those that wait, in their order."""

    def __init__(
        self,
        running: Iterable[TaskAhead],
        waiting: Iterable[TaskAhead],
        most: MostAtOnce,
        seconds: Callable[[StepWork], float],
    ) -> None:
        self._most, self._seconds = most, seconds
        self._waiting = deque(waiting)
        self._reading: deque[TaskAhead] = deque()
        self._writing: list[tuple[int, int, TaskAhead]] = []  # by the step in which they end
        self._time = 0.0
        self._step = self._number = 0
        self._rows = self._held = self._context = 0.0  # of those that write, all, and the former
        self._width = 0
        for task in running:
            self._begin(task)

    def of(self, own: TaskAhead) -> Expected | None:
        """What comes of a task that runs or waits; None: nobody can tell so far ahead."""
        first: float | None = None
        for _ in range(_MOST_EVENTS):
            self._let_in()
            if not self._reading and not self._writing:
                return None
            written, ended = self._go_on()
            if own in written:
                first = self._time
            if own in ended:
                return Expected(self._time if first is None else first, self._time)
        return None

    def _begin(self, task: TaskAhead) -> None:
        self._width += task.width
        self._held += task.tokens
        if task.begun:
            self._write(task)
        else:
            self._reading.append(task)

    def _write(self, task: TaskAhead) -> None:
        self._number += 1
        heapq.heappush(self._writing, (self._step + max(task.output, 1), self._number, task))
        self._rows += task.width
        self._context += task.width * task.tokens

    def _let_in(self) -> None:
        while self._waiting:
            task, alone = self._waiting[0], self._width == 0
            fits = self._width + task.width <= self._most.sequences
            if not alone and not (fits and self._held + task.tokens <= self._most.pool_tokens):
                return
            self._begin(self._waiting.popleft())

    def _go_on(self) -> tuple[list[TaskAhead], list[TaskAhead]]:
        """To the end of a prompt, or of what somebody writes: who has a first token, who ends."""
        budget = max(1, self._most.step_tokens - int(self._rows))
        steps = self._writing[0][0] - self._step if self._writing else math.inf
        if self._reading:
            steps = min(steps, math.ceil(self._reading[0].prompt / budget))
        count = max(1, int(steps))  # the last chunk of a prompt may be under way
        read, written = self._read(count * budget)
        tokens = self._rows + read.tokens / count
        attended = self._context + self._rows * count / 2 + read.attended / count
        work = StepWork(1.0, self._rows + read.sequences / count, tokens, attended / 1000)
        self._time += count * self._seconds(work)
        self._step += count
        self._context += self._rows * count
        self._held += self._rows * count
        ended = [task for task in written if task.output <= 1]
        for task in ended:
            self._end(task, task.tokens)
        for task in written:
            if task.output > 1:
                task.output -= 1  # the first one has come
                self._write(task)
        while self._writing and self._writing[0][0] <= self._step:
            task = heapq.heappop(self._writing)[2]
            grown = task.tokens + task.output
            self._rows -= task.width
            self._context -= task.width * grown
            self._end(task, task.tokens + task.width * task.output)
            ended.append(task)
        return written, ended

    def _read(self, tokens: int) -> tuple[_Read, list[TaskAhead]]:
        """So many tokens of the prompts that are read, one after the other."""
        left, sequences, attended = tokens, 0, 0.0
        done = []
        while self._reading and left > 0:
            task = self._reading[0]
            count = min(left, task.prompt)
            attended += count * (task.context + count / 2)
            left -= count
            sequences += 1
            task.prompt -= count
            task.context += count
            if task.prompt:
                break
            done.append(self._reading.popleft())
        return _Read(tokens - left, sequences, attended), done

    def _end(self, task: TaskAhead, held: float) -> None:
        self._width -= task.width
        self._held -= held


class _Read(NamedTuple):
    tokens: int
    sequences: int
    attended: float
