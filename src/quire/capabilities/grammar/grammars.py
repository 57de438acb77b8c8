"""The grammars of an engine: what a request asks for, as the sampler and the scheduler meet it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from quire.capabilities.box import Box, BoxBroken, BoxWorker
from quire.capabilities.grammar.boxed import ROWS, BoxedRules, Follower, Mask
from quire.capabilities.grammar.compiler import Asked, Source, asked_of, form_of
from quire.capabilities.grammar.guide import Guide, Rules
from quire.capabilities.grammar.service import HEADER, VocabularyFacts
from quire.capabilities.grammar.vocabulary import GrammarTokenizer
from quire.core.errors import RequestError
from quire.core.scheduling import Capability, Scheduler
from quire.text import exact_json
from quire.text.params import SamplingParams

_FIELD = "structured_outputs"
_LONGEST_COMPILING = 10.0  # seconds
_LONGEST_CHECKING = 5.0
_MEMORY = 2 << 30  # bytes that a worker may take
_MOST_CHECKED = 16 << 20  # characters of what has been compiled before
_REST = 0.002  # seconds


class PlainGuide:
    """An ``OutputGuide`` without a grammar: reasoning is bounded, and the text is free."""

    failure = finder = None

    def __init__(self, guide: Guide, vocab_size: int) -> None:
        self._guide, self._vocab_size = guide, vocab_size
        self._masks: dict[int, Mask] = {}
        self._forced: Sequence[int] = ()

    def ask(self, output: Sequence[int], lengths: Sequence[int], *, forced: bool = False) -> bool:
        places = [(self._guide, output, length) for length in lengths]
        self._masks = dict(zip(lengths, Guide.fill_masks(places, self._vocab_size), strict=True))
        self._forced = self._guide.forced(output) if forced else ()
        return False

    def wait(self, deadline: float) -> None:
        """See ``OutputGuide``."""

    def late(self) -> None:
        """See ``OutputGuide``."""

    def spent(self) -> float:
        return 0.0

    def mask(self, length: int) -> Mask | None:
        return self._masks.get(length)

    def forced(self, length: int) -> Sequence[int]:
        return self._forced

    def retreat(self, length: int) -> None:
        self._guide.retreat(length)

    def fork(self) -> PlainGuide:
        return PlainGuide(self._guide.fork(), self._vocab_size)


class PlainRules:
    """The rules of a request whose reasoning has a budget, and whose text is free."""

    def __init__(self, rules: Rules, vocab_size: int) -> None:
        self._rules, self._vocab_size = rules, vocab_size

    def guide(self) -> PlainGuide:
        """A guide for one more output, at its beginning."""
        return PlainGuide(self._rules.guide(), self._vocab_size)


class Grammars(Capability):
    """Compiles, follows and bounds grammars in worker processes, which begin with the first one.

    Any thread may call ``rules``; an engine calls the rest, as one of its capabilities.
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        vocab_size: int,
        ends: frozenset[int],
        *,
        additional_properties: bool = False,
    ) -> None:
        self._tokenizer, self._additional_properties = tokenizer, additional_properties
        self._vocab_size, self._ends = vocab_size, ends
        self._lock = threading.Lock()
        self._box: Box | None = None
        self._compiled: OrderedDict[Asked, Source] = OrderedDict()
        self._num_checked = 0  # characters of these
        self._sitting = False  # whether somebody does
        self._numbers = count(1)
        self._follower, self._slow = (
            Follower(self._worker, vocab_size, self._numbers) for _ in range(2)
        )

    def rules(self, params: SamplingParams) -> BoxedRules | PlainRules | None:
        """What guides outputs of a request; None if anything may be written.

        RequestError, naming the field, where there is no text that fits, or no way to see to it.
        """
        form = form_of(params, self._tokenizer)
        if form is None:
            return None
        if form.asked is None:
            return PlainRules(Rules(None, form.thinking, self._ends), self._vocab_size)
        form = form._replace(source=self._source(form.asked))
        self._follower.ready()
        return BoxedRules(next(self._numbers), form, self._follower, self._slow)

    def compiles(self, params: SamplingParams) -> bool:
        """Whether ``rules`` would have to compile something."""
        asked = asked_of(params)
        with self._lock:
            return asked is not None and asked not in self._compiled

    def _source(self, asked: Asked) -> Source:
        """Compile once in the box where no output is followed, to see that it can be done."""
        with self._lock:
            if (known := self._compiled.get(asked)) is not None:
                self._compiled.move_to_end(asked)
                return known
            self._box = box = self._box or self._new_box()
        try:
            source = box.call("source", asked, seconds=_LONGEST_COMPILING, gives=Source)
        except BoxBroken as error:
            raise RequestError(f"{_FIELD} cannot be compiled: {error}", _FIELD) from None
        with self._lock:
            if asked not in self._compiled:  # another thread may have been as fast
                self._compiled[asked] = source
                self._num_checked += _size(asked, source)
            while self._num_checked > _MOST_CHECKED:
                self._num_checked -= _size(*self._compiled.popitem(last=False))
        return source

    def misfit(self, schema: Mapping[str, Any], text: str) -> str:
        """Why JSON does not fit a schema; "" if it does. Any thread may call it.

        RequestError or BoxBroken, where that is not known.
        """
        with self._lock:
            self._box = box = self._box or self._new_box()
        written = exact_json.write(exact_json.exact(schema))
        return box.call("misfit", written, text, seconds=_LONGEST_CHECKING, gives=str)

    def _new_box(self) -> Box:
        text = self._tokenizer.to_json()
        if text is None or not self._ends:
            why = "whose text can be read token by token" if text is None else "with an end"
            raise RequestError(f"{_FIELD} needs a tokenizer {why}", _FIELD)
        return Box(
            "quire.capabilities.grammar.service:GrammarService",
            VocabularyFacts(text, frozenset(self._tokenizer.special_ids)),
            self._vocab_size,
            self._ends,
            self._additional_properties,
            memory=_MEMORY,
            shared=HEADER + ROWS * 4 * -(-self._vocab_size // 32),
        )

    def _worker(self) -> BoxWorker:
        assert self._box is not None, "nothing has been compiled"
        return self._box.worker()

    def recall(self, scheduler: Scheduler) -> None:
        """See ``Capability``: call back requests whose answers have come."""
        for follower in (self._follower, self._slow):
            follower.pump(None, 0.0)
        sitting = list[str]()
        for request_id in scheduler.queue.sitting:
            group = scheduler.group(request_id)
            rules = None if group is None else group.request.rules
            if isinstance(rules, BoxedRules) and rules.sits():
                sitting.append(request_id)
        scheduler.sit_out(sitting)
        self._sitting = bool(scheduler.queue.sitting)

    def rest(self) -> None:
        if self._sitting:
            time.sleep(_REST)

    def close(self) -> None:
        with self._lock:
            box = self._box
        if box is not None:
            box.close()
        self._follower.close()
        self._slow.close()


def _size(asked: Asked, source: Source) -> int:
    return asked.text.size + len(source.text)
