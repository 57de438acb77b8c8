"""Grammars in a worker process: compiled, followed token by token, and what may come next.

A guide that takes long, as ambiguous grammars do, keeps nobody waiting but its own request. *Lanes*
are threads that carry out what is asked, and native code lets others run. One that is at a guide
for too long goes on as a slow lane, and others take what it has left. The guides of that request
are then asked by slow lanes, at a low priority once they have had much. Requests take turns.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import tokenizers

from quire.capabilities.box.inside import leave_the_cores
from quire.capabilities.grammar.compiler import Asked, Form, GrammarCompiler, Source
from quire.capabilities.grammar.guide import Guide, MaskRow
from quire.core.errors import RequestError
from quire.kernels.threads import usable_cores

HEADER = 4_096  # bytes before the rows of masks: at which guide each lane is
MOST_LANES = HEADER // 8
PLAIN = 4
SLOW = 0.005  # seconds at one guide
MUCH = 0.25  # seconds of a request, after which it leaves the cores to others
_PATIENCE = 0.010  # seconds until an answer, whatever is left to do
_CORES_A_LANE = 4
_JOBS = 16  # that a lane takes at once
_GLANCE = 0.001  # seconds after which a lane looks at the clock of its own thread, which takes long
_LONGEST_REASON = 200  # characters


class Question(NamedTuple):
    """A question about an output. Its guide waits for the answer before it asks again.

    form: what the output must be, with the first question. kept: tokens known from before that have
    not changed. tokens: that follow these. places: after how many of the tokens a mask is wanted,
    and its row. forced: whether to look for tokens that must come next.

    Most questions are about one more token and what may follow it. They are sent as ``PLAIN``
    numbers: guide, kept, the token, and the row of the mask.
    """

    guide: int
    request: int
    form: Form | None
    kept: int
    tokens: bytes
    places: Sequence[tuple[int, int]]
    forced: bool


class Done(msgspec.Struct, array_like=True):
    """An answer, whose masks are in the rows. seconds: processor time that it took."""

    guide: int
    failure: str | None
    forced: list[int]
    seconds: float


class Found(msgspec.Struct, array_like=True):
    """Answers, and the time spent on questions that are still under way.

    under_way: guides, each with the processor seconds that it has had.
    """

    done: list[Done]
    under_way: list[tuple[int, float]]


@dataclass(eq=False)
class _Standing:
    """Whether the outputs of a request are slow, and the seconds of slow answers."""

    slow: bool = False
    seconds: float = 0.0


@dataclass
class _Output:
    standing: _Standing
    guide: Guide | None = None
    tokens: array[int] = field(default_factory=lambda: array("I"))


class _Job(NamedTuple):
    """A ``Question`` with the output that it is about."""

    output: _Output
    guide: int
    kept: int
    tokens: Sequence[int]
    places: Sequence[tuple[int, int]]
    forced: bool = False
    form: Form | None = None


class _Turns:
    """Jobs that wait: requests take turns, however many jobs each has."""

    def __init__(self) -> None:
        self._jobs: dict[_Standing, deque[_Job]] = {}  # by request; the next one first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: _Job) -> None:
        self._count += 1
        self._jobs.setdefault(job.output.standing, deque()).append(job)

    def take(self, most: int) -> list[_Job]:
        taken = list[_Job]()
        while self._jobs and len(taken) < most:
            standing, jobs = next(iter(self._jobs.items()))
            taken.append(jobs.popleft())
            del self._jobs[standing]
            if jobs:
                self._jobs[standing] = jobs
        self._count -= len(taken)
        return taken

    def take_all(self, standing: _Standing) -> Sequence[_Job]:
        taken = self._jobs.pop(standing, ())
        self._count -= len(taken)
        return taken


class VocabularyFacts(NamedTuple):
    """A model's tokens: the text of its tokenizer.json, and which of them are special."""

    text: str
    special_ids: frozenset[int]


class _Tokenizer:
    def __init__(self, facts: VocabularyFacts) -> None:
        self._text, self.special_ids = facts
        self.token_id = tokenizers.Tokenizer.from_str(facts.text).token_to_id

    def to_json(self) -> str:
        return self._text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]:
        raise NotImplementedError("marks come as tokens")


class GrammarService:
    """See ``Box``. It is made where no client's grammar has been."""

    def __init__(
        self,
        facts: VocabularyFacts,
        vocab_size: int,
        ends: frozenset[int],
        additional_properties: bool,
    ) -> None:
        self._compiler = GrammarCompiler(
            _Tokenizer(facts), vocab_size, ends, additional_properties=additional_properties
        )
        self._compiler.warm_up()
        self._vocab_size = vocab_size

    def source(self, asked: Asked) -> Source:
        """The source of a grammar. RequestError if it cannot be compiled."""
        return self._compiler.source(asked)

    def misfit(self, schema: str, text: str) -> str:
        """Why JSON does not fit a schema; "" if it does."""
        from quire.capabilities.grammar.misfits import misfit  # few need what it loads

        return misfit(schema, text)

    def share(self, memory: mmap) -> None:
        """Take the memory in which masks are written."""
        sys.setswitchinterval(0.001)
        words = -(-self._vocab_size // 32)
        self._at = memoryview(memory)[:HEADER].cast("Q")
        table = np.frombuffer(memory, np.uint32, offset=HEADER).reshape(-1, words)
        self._rows = MaskRow.each_of(table)
        self._outputs: dict[int, _Output] = {}
        self._standings = WeakValueDictionary[int, _Standing]()
        self._changed = threading.Condition()
        self._fast, self._slow = _Turns(), _Turns()
        self._done: list[Done] = []
        self._most = max(1, min(4, usable_cores() // _CORES_A_LANE))  # lanes of a kind
        self._lanes: list[_Lane] = []

    def step(
        self,
        forked: Sequence[tuple[int, int]],
        dropped: Sequence[int],
        asks: Sequence[tuple[Any, ...]],
        plain: bytes = b"",
    ) -> Found:
        """Begin to answer; returns, after a moment, the answers since the last call.

        asks: a ``Question`` each. plain: those that are numbers only.
        """
        for child, parent in forked:
            self._fork(child, parent)
        for guide in dropped:
            self._outputs.pop(guide, None)
        deadline = time.monotonic() + _PATIENCE
        with self._changed:
            for ask in asks:
                self._add(self._job(Question._make(ask)))
            numbers = iter(memoryview(plain).cast("Q").tolist())
            for guide, kept, token, row in zip(*[numbers] * PLAIN, strict=True):
                places = ((kept + 1, row),)
                self._add(_Job(self._outputs[guide], guide, kept, (token,), places))
            self._begin()
            while not self._settled and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, SLOW / 2))
                self._part()
            done = self._done[:]
            del self._done[: len(done)]  # a lane may add another one meanwhile
            return Found(done, self._under_way())

    def _add(self, job: _Job) -> None:
        (self._slow if job.output.standing.slow else self._fast).add(job)

    def _job(self, ask: Question) -> _Job:
        output = self._outputs.get(ask.guide)
        if output is None:
            standing = self._standings.setdefault(ask.request, _Standing())
            output = self._outputs[ask.guide] = _Output(standing)
        tokens = memoryview(ask.tokens).cast("I")
        return _Job(output, ask.guide, ask.kept, tokens, ask.places, ask.forced, ask.form)

    def _fork(self, child: int, parent: int) -> None:
        known = self._outputs[parent]
        guide = None if known.guide is None else known.guide.fork()
        self._outputs[child] = _Output(known.standing, guide, known.tokens[:])

    @property
    def _settled(self) -> bool:
        """Whether no further answer is to be expected soon."""
        if self._fast or any(lane.job and not lane.slow for lane in self._lanes):
            return False
        return bool(self._done) or not any(lane.job for lane in self._lanes)

    def _under_way(self) -> list[tuple[int, float]]:
        slow = ((lane, lane.job) for lane in self._lanes if lane.slow)
        return [(job.guide, lane.seconds) for lane, job in slow if job is not None]

    def _begin(self) -> None:
        """Have lanes for what there is to do."""
        for jobs, slow in ((self._fast, False), (self._slow, True)):
            there = sum(lane.slow is slow for lane in self._lanes)
            for _ in range(min(len(jobs), self._most - there)):
                taken = {lane.slot for lane in self._lanes}
                slot = next((one for one in range(MOST_LANES) if one not in taken), None)
                if slot is not None:
                    self._lanes.append(_Lane(self, slot, slow=slow))
                    self._lanes[-1].start()
        self._changed.notify_all()

    def _part(self) -> None:
        """Make lanes slow that are at a guide for too long, and give their other jobs away."""
        for lane in list(self._lanes):
            if (job := lane.job) is None or (seconds := lane.seconds) < SLOW:
                continue
            if job.output.standing.seconds + seconds > MUCH:
                lane.yields()
            if not lane.slow:
                lane.slow = job.output.standing.slow = True
                for other in [*lane.left(), *self._fast.take_all(job.output.standing)]:
                    self._add(other)
                self._begin()

    def take(self, lane: _Lane) -> bool:
        """Give a lane jobs; False: it is to end, since there are enough lanes."""
        with self._changed:
            for job in lane.left():
                self._add(job)
            lane.job = None
            if lane.slow or not self._fast:
                self._changed.notify_all()
            while True:
                many = sum(one.slow for one in self._lanes) > self._most
                if lane.yielded or (lane.slow and many):
                    self._lanes.remove(lane)
                    self._begin()
                    return False
                if jobs := self._slow if lane.slow else self._fast:
                    share = 1 if lane.slow else min(_JOBS, -(-len(jobs) // self._most))
                    lane.jobs += jobs.take(share)
                    lane.job = lane.jobs[0]
                    return True
                self._changed.wait()

    def carry_out(self, lane: _Lane, job: _Job) -> None:
        """Answer a job."""
        standing, failure, forced = job.output.standing, None, list[int]()
        self._at[lane.slot] = job.guide
        try:
            failure = self._find(job)
            if job.forced and failure is None:
                failure, forced = self._look_for_forced(job.output)
        except MemoryError:
            os._exit(1)
        except BaseException as error:  # what native code panics with is no Exception
            refused = isinstance(error, RequestError)
            failure = (
                str(error) if refused else f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            )
            for _, row in job.places:  # some may be half written
                self._rows[row].bits[:] = 0
        seconds = lane.end()
        standing.slow = seconds > SLOW
        if standing.slow:
            standing.seconds += seconds
        self._done.append(Done(job.guide, failure, forced, seconds))

    def rests(self, lane: _Lane) -> None:
        """Note that a lane is at no guide."""
        self._at[lane.slot] = 0

    def _find(self, job: _Job) -> str | None:
        """Write the masks of a job; the reason if nothing can follow, else None."""
        output, kept = job.output, job.kept
        guide, tokens = output.guide, output.tokens
        if guide is None:
            assert job.form is not None, "it comes with the first question"
            guide = output.guide = self._compiler.rules_of(job.form).guide()
        if kept < len(tokens):
            guide.retreat(kept)
            del tokens[kept:]
        tokens.extend(job.tokens)
        for length, row in job.places:
            guide.fill_mask(self._rows[row], tokens, length)
        return guide.failure

    @staticmethod
    def _look_for_forced(output: _Output) -> tuple[str | None, list[int]]:
        guide, tokens = output.guide, output.tokens
        assert guide is not None
        guide.follow(tokens, len(tokens))
        return guide.failure, guide.forced(tokens)


class _Lane(threading.Thread):
    """A thread that carries out jobs, one after the other.

    job: the one at hand. jobs: those to do after it.
    """

    def __init__(self, service: GrammarService, slot: int, *, slow: bool) -> None:
        super().__init__(daemon=True)
        self._service = service
        self.slot, self.slow = slot, slow
        self.job: _Job | None = None
        self.jobs = deque[_Job]()
        self.yielded = False
        self._clock = time.monotonic  # of its own thread, where there is one
        self._began = 0.0  # its job, by the monotonic clock
        self._glanced, self._since = 0.0, 0.0  # when it last looked at its own, and what that said

    def run(self) -> None:
        if sys.platform == "linux":
            assert self.ident is not None
            clock = time.pthread_getcpuclockid(self.ident)
            self._clock = partial(time.clock_gettime, clock)
        while self._service.take(self):
            self._began = time.monotonic()
            with suppress(IndexError):  # others may take what is left
                while not self.yielded:
                    self.job = job = self.jobs.popleft()
                    if job.output.standing.seconds > MUCH:
                        self.yields()
                    self._service.carry_out(self, job)
            self._service.rests(self)

    def left(self) -> list[_Job]:
        """Take away the jobs that it has not begun."""
        jobs = list[_Job]()
        with suppress(IndexError):
            while True:
                jobs.append(self.jobs.popleft())
        return jobs

    @property
    def seconds(self) -> float:
        """Processor seconds since it began its job: others may keep it from computing."""
        return min(time.monotonic() - self._began, self._clock() - self._since)

    def end(self) -> float:
        """End the job; its seconds, or a little more. Its own thread calls it."""
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        if now - self._glanced > _GLANCE:
            clock = self._clock()
            seconds = min(seconds, clock - self._since)
            self._glanced, self._since = now, clock
        return seconds

    def yields(self) -> None:
        """Leave the cores to others; that cannot be undone."""
        self.yielded = True
        if self.native_id is not None:
            with suppress(OSError):
                leave_the_cores(self.native_id)
