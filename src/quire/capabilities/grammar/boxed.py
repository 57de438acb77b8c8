"""Outputs that keep to a grammar, as the server has them, and who asks a worker about them.

A guide is derived from its output. So a worker that has ended is replaced, and the next one is
given whole outputs.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from quire.capabilities.box import Allowance, BoxBroken, BoxWorker
from quire.capabilities.grammar.compiler import Form
from quire.capabilities.grammar.service import HEADER, MOST_LANES, MUCH, SLOW, Done, Found
from quire.core.errors import QuireError

logger = logging.getLogger(__name__)
ROWS = 1_024  # masks that are asked for at once
_LONGEST_SITTING = 5.0  # seconds of a processor that are spent while a request waits for them
_LONGEST_SILENCE = 5.0  # seconds of a processor in which a worker does not answer
_MOST_MISSING, _RETRY = 3, 1.0  # times that no worker can be had, and seconds between them
_REST = 0.005  # seconds
Mask = NDArray[np.uint32]


class BoxedRules:
    """The rules of a request whose text keeps to a grammar.

    follower: of its outputs. seconds: processor time that its outputs have taken; much: the part of
    it in answers that took long; sat: the part while the request sat out steps. sitting: whether it
    does. waiting: guides whose answers are due; under_way: seconds of answers not yet finished.
    """

    def __init__(self, number: int, form: Form, follower: Follower, slow: Follower) -> None:
        """slow: the follower for requests that take long."""
        self.number, self.form, self.follower, self._slow = number, form, follower, slow
        self.seconds = self.much = self.sat = 0.0
        self.sitting = False
        self.waiting = set[int]()
        self.under_way: dict[int, float] = {}
        self.failure: str | None = None
        self._suspected = 0  # times

    def guide(self) -> BoxedGuide:
        """A guide for one more output, at its beginning."""
        return BoxedGuide(self)

    def spend(self, seconds: float) -> None:
        """Account for an answer that took ``seconds``."""
        self.seconds += seconds
        if self.sitting:
            self.sat += seconds
        if seconds > SLOW:
            self.much += seconds
            if self.much > MUCH:
                self.follower = self._slow

    def sits(self) -> bool:
        """Whether the request still sits out steps. It fails if an answer takes too long.

        Processor time counts: other processes may keep its worker from computing.
        """
        if self.sat + sum(self.under_way.values()) > _LONGEST_SITTING:
            self.complex(f"to find what may come next has taken more than {_LONGEST_SITTING:g} s")
        self.sitting = bool(self.waiting) and self.failure is None
        return self.sitting

    def suspect(self, why: str) -> None:
        """Note that a worker ended at one of its outputs; the second time all of them fail."""
        self._suspected += 1
        if self._suspected > 1:
            self.complex(why)

    def complex(self, why: str) -> None:
        """Fail because the grammar is too complex."""
        self.fail(f"the grammar has become too complex: {why}")

    def fail(self, why: str) -> None:
        """Let none of its outputs go on."""
        self.failure = self.failure or why


class BoxedGuide:
    """An ``OutputGuide`` of an output that keeps to a grammar.

    follower: asks the worker for it. knower: number of the worker that knows the output; kept: how
    many of its tokens. wanted: the next question: the output, the lengths after which masks are
    wanted, and whether forced tokens are. asked: the output of the question whose answer is due;
    flight: the rows of its masks, by length, as far as they still matter.
    """

    def __init__(self, rules: BoxedRules) -> None:
        self.rules, self.follower = rules, rules.follower
        self.number = next(rules.follower.numbers)
        self.knower = self.kept = 0
        self.wanted: tuple[Sequence[int], list[int], bool] | None = None
        self.asked: Sequence[int] | None = None
        self.flight: dict[int, int] = {}
        self._masks: dict[int, Mask] = {}
        self._forced: tuple[int, Sequence[int]] = (-1, ())  # after how many tokens, and which
        self._failure: str | None = None  # where it was asked last
        self._spent = 0.0

    def __del__(self) -> None:
        self.follower.drop(self)

    @property
    def finder(self) -> Follower:
        return self.follower

    @property
    def failure(self) -> str | None:
        return self.rules.failure or self._failure

    def ask(self, output: Sequence[int], lengths: Sequence[int], *, forced: bool = False) -> bool:
        masks, flight = self._masks, self.flight
        if len(lengths) == 1 and not forced and (lengths[0] in masks or lengths[0] in flight):
            return self.wanted is not None
        missing = [one for one in lengths if one not in masks and one not in flight]
        if not missing and (not forced or self._forced[0] == len(output)):
            return self.wanted is not None
        if self.rules.failure is not None:  # another worker may die of it
            return False
        if masks:
            self._masks = {one: masks[one] for one in lengths if one in masks}
        self.want(output, missing, forced=forced)
        return True

    def want(self, output: Sequence[int], lengths: list[int], *, forced: bool = False) -> None:
        """Ask, once the question before is answered."""
        rules = self.rules
        self.wanted = output, lengths, forced
        rules.waiting.add(self.number)
        if self.asked is None:
            if self.follower is not rules.follower:
                self.follower.drop(self)
                self.follower = rules.follower
            self.follower.ask(self)

    def answer(self, done: Done | None, masks: dict[int, Mask]) -> None:
        """Take an answer; masks: by length. None: there will be no answer."""
        output, lost, rules = self.asked, self.flight, self.rules
        self.asked, self.flight = None, {}
        self._masks |= masks
        if done is not None:
            self._forced, self._failure = (self.kept, done.forced), done.failure
            rules.under_way.pop(self.number, None)
            rules.spend(done.seconds)
            self._spent += done.seconds
        elif self.wanted is None and output is not None and rules.failure is None:
            self.wanted = output, list(lost), False
        if self.wanted is not None and rules.failure is None:
            self.want(*self.wanted[:2], forced=self.wanted[2])
        else:
            self.wanted = None
            rules.waiting.discard(self.number)

    def wait(self, deadline: float) -> None:
        if self.number in self.rules.waiting:
            self.follower.pump(self, deadline)

    def mask(self, length: int) -> Mask | None:
        return self._masks.get(length) if self.rules.failure is None else self.follower.nothing

    def spent(self) -> float:
        spent, self._spent = self._spent, 0.0
        return spent

    def late(self) -> None:
        self.rules.sitting = True

    def forced(self, length: int) -> Sequence[int]:
        known, tokens = self._forced
        return tokens if known == length else ()

    def retreat(self, length: int) -> None:
        self.kept = min(self.kept, length)
        self._forced, self._failure = (-1, ()), None
        self._masks = {place: mask for place, mask in self._masks.items() if place <= length}
        self.flight = {place: row for place, row in self.flight.items() if place <= length}
        if self.wanted is not None:
            output, places, _ = self.wanted
            self.wanted = output, [place for place in places if place <= length], False

    def fork(self) -> BoxedGuide:
        other = BoxedGuide(self.rules)
        if self.number not in self.rules.waiting and self.follower is other.follower:
            self.follower.fork(self, other)
            other._masks = self._masks.copy()
        return other


class Follower:
    """Asks a worker about outputs, all in one call, one call at a time; replaces it if it ends.

    numbers: of guides and workers, each once.
    """

    def __init__(
        self, make: Callable[[], BoxWorker], vocab_size: int, numbers: Iterator[int]
    ) -> None:
        """make: a new worker. It may take a while, so another thread calls it."""
        self._make, self.numbers = make, numbers
        self._words = -(-vocab_size // 32)
        self.nothing = np.zeros(self._words, np.uint32)
        self._worker: BoxWorker | None = None
        self._number = 0  # of this one
        self._fresh: BoxWorker | None = None  # to be the next one
        self._making = threading.Lock()
        self._called: Allowance | None = None  # until an answer, where one is due
        self._seeking = False  # whether a thread does, for those who ask already
        self._missing = 0  # times that it has found none
        self._rows = list(range(ROWS))
        self._asking: dict[int, BoxedGuide] = {}  # of whom nothing else is due; in order
        self._flights: dict[int, tuple[BoxedGuide, list[int]]] = {}  # and their rows
        self._forked: list[tuple[int, int]] = []
        self._dropped: list[int] = []

    def ready(self) -> None:
        """Get a worker if there is none. Any thread may call it."""
        if self._worker is None and self._fresh is None and self._making.acquire(blocking=False):
            try:
                self._fresh = self._make()
            except (QuireError, OSError) as error:
                logger.warning("there is no worker for grammars: %s", error)
            finally:
                self._making.release()

    def _search(self) -> None:
        self.ready()
        found = self._worker is not None or self._fresh is not None
        self._missing = 0 if found else self._missing + 1
        if not found:
            time.sleep(_RETRY)
        self._seeking = False

    def ask(self, guide: BoxedGuide) -> None:
        """Queue a guide's question."""
        self._asking[guide.number] = guide

    def fork(self, parent: BoxedGuide, child: BoxedGuide) -> None:
        """The child's output begins as the parent's, of whom nothing is due."""
        if parent.knower == self._number:
            self._forked.append((child.number, parent.number))
            child.knower, child.kept = parent.knower, parent.kept

    def drop(self, guide: BoxedGuide) -> None:
        """Have the worker forget a guide's output."""
        if guide.knower and guide.knower == self._number:
            self._dropped.append(guide.number)

    def begin(self) -> None:
        if self._asking:
            if self._called is not None:
                self._receive(0.0)
            self._send()

    def pump(self, guide: BoxedGuide | None, deadline: float) -> None:
        """Ask, and take in answers, until the guide has its answer or time is up."""
        while True:
            self._send()
            if guide is not None and guide.number not in guide.rules.waiting:
                return
            left = max(0.0, deadline - time.monotonic())
            if self._called is not None:
                if not self._receive(left):
                    return
            elif left:
                time.sleep(min(left, _REST))
            else:
                return

    def _send(self) -> None:
        """Begin a call, if none is under way and there is something to be found out."""
        if self._called is not None or not (self._asking or self._flights):
            return
        if self._worker is None:
            self._worker, self._fresh = self._fresh, None
            if self._worker is None:
                self._seek()
                return
            self._number = next(self.numbers)
            table = np.frombuffer(self._worker.shared, np.uint32, offset=HEADER)
            self._table = table.reshape(-1, self._words)
        asks, plain = list[tuple[object, ...]](), array("Q")
        asking, self._asking = self._asking, {}
        for guide in asking.values():
            if guide.rules.failure is not None:
                guide.answer(None, {})
            elif self._asking or len(guide.wanted[1] if guide.wanted else ()) > len(self._rows):
                self._asking[guide.number] = guide  # in the next call
            else:
                self._question(guide, asks, plain)
        news, self._forked, self._dropped = (self._forked, self._dropped), [], []
        try:
            self._called = self._worker.allows(_LONGEST_SILENCE)
            self._worker.send("step", *news, asks, plain.tobytes())
        except BoxBroken as error:
            self._lost(str(error))

    def _question(
        self, guide: BoxedGuide, asks: list[tuple[object, ...]], plain: array[int]
    ) -> None:
        """Add a ``Question``, as plain numbers where possible, which are fast to send."""
        assert guide.wanted is not None
        output, lengths, forced = guide.wanted
        guide.wanted, guide.asked = None, output
        if len(lengths) == 1 and not forced and guide.knower == self._number:
            length, kept = lengths[0], guide.kept
            if length == kept + 1:  # as nearly always
                row = self._rows.pop()
                guide.kept, guide.flight = length, {length: row}
                self._flights[guide.number] = guide, [row]
                plain.extend((guide.number, kept, output[kept], row))
                return
        first = len(self._rows) - len(lengths)
        rows = self._rows[first:]
        del self._rows[first:]
        guide.flight = dict(zip(lengths, rows, strict=True))
        self._flights[guide.number] = guide, rows
        kept, form = guide.kept, None
        if guide.knower != self._number:
            guide.knower, kept, form = self._number, 0, guide.rules.form
        guide.kept = end = len(output) if forced else max(lengths, default=kept)
        kept = min(kept, end)
        tokens = array("I", output[kept:end]).tobytes()
        places = tuple(guide.flight.items())
        asks.append((guide.number, guide.rules.number, form, kept, tokens, places, forced))

    def _receive(self, seconds: float) -> bool:
        """Take in an answer; False: it is not there in time."""
        worker, called = self._worker, self._called
        assert worker is not None and called is not None
        try:
            found = worker.receive(seconds, Found)
        except TimeoutError:
            if not called.left():
                self._lost(f"no answer comes, and {called.why()}")
            return False
        except BoxBroken as error:
            self._lost(str(error))
            return True
        self._called = None
        landed = [(*self._flights.pop(done.guide, (None, [])), done) for done in found.done]
        rows = [row for _, those, _ in landed for row in those]
        masks = dict(zip(rows, self._table[rows], strict=True))  # a copy
        self._rows += rows
        for guide, _, done in landed:
            if guide is not None:
                guide.answer(done, {length: masks[row] for length, row in guide.flight.items()})
        for number, spent in found.under_way:
            if number in self._flights:
                self._flights[number][0].rules.under_way[number] = spent
        return True

    def _seek(self) -> None:
        """Have a thread get a worker; if it cannot, all guides that ask now fail."""
        if self._seeking:
            return
        if self._missing < _MOST_MISSING:
            self._seeking = True
            threading.Thread(target=self._search, name="quire-grammar", daemon=True).start()
            return
        self._missing, asking, self._asking = 0, self._asking, {}
        for guide in asking.values():
            guide.rules.fail("there is no process to be had that says what may come next")
            guide.answer(None, {})

    def _lost(self, why: str) -> None:
        """Give up a worker that has ended, and ask all its questions again."""
        worker, self._worker, self._called = self._worker, None, None
        assert worker is not None
        logger.warning("a worker for grammars has ended: %s", why)
        at = set(np.frombuffer(worker.shared, np.uint64, MOST_LANES).tolist())
        worker.end()
        flights, self._flights, self._rows = self._flights, {}, list(range(ROWS))
        self._forked, self._dropped, self._number = [], [], 0
        for guide, _ in flights.values():
            if guide.number in at:
                guide.rules.suspect(why)
        for guide, _ in flights.values():
            guide.answer(None, {})

    def close(self) -> None:
        """End the worker."""
        for worker in (self._worker, self._fresh):
            if worker is not None:
                worker.end()
