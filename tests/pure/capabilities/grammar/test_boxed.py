"""What compiles a grammar may crash, and what follows it may end: nobody but its request does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from hashlib import pbkdf2_hmac
from itertools import count
from mmap import mmap
from types import SimpleNamespace

import numpy as np
import pytest

from quire.capabilities.box import Box, BoxBroken, BoxWorker
from quire.capabilities.grammar import BoxedRules, Grammars, Guide, boxed
from quire.capabilities.grammar.boxed import ROWS, BoxedGuide, Follower
from quire.capabilities.grammar.service import HEADER, SLOW, GrammarService, VocabularyFacts
from quire.core.errors import RequestError
from quire.execution.sampling.guidance import begin_finding, wait_for
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs
from support.boxed import stop
from support.grammars import END, Words, backend, compiler, tokens_of

SIZE = backend().get_vocab_size()
OBJECT = '{"name": "x", "age": 3}'
AMBIGUOUS = "start: e\ne: e e e | e e | /[a-z ]/"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_native_code_that_recurses_too_deep_ends_one_call() -> None:
    box = Box("support.boxed:Native", "")
    with pytest.raises(BoxBroken, match="SIGSEGV"):
        box.call("compile", 20_000, seconds=60, gives=str)
    assert box.call("compile", 3, seconds=60, gives=str) == ""
    box.close()


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(Words(backend()), SIZE, frozenset({END}), additional_properties=True)
    yield made
    made.close()


def rules_of(grammars: Grammars, **others: object) -> BoxedRules:
    params = SamplingParams(structured_outputs=StructuredOutputs(json=SCHEMA), **others)  # type: ignore[arg-type]
    rules = grammars.rules(params)
    assert isinstance(rules, BoxedRules)
    return rules


def mask(guide: BoxedGuide, output: Sequence[int], length: int) -> np.ndarray:
    guide.ask(output, [length])
    guide.wait(time.monotonic() + 60)
    found = guide.mask(length)
    assert found is not None
    return found


@pytest.mark.parametrize("marks", [None, Reasoning("<think>", "the end", True)])
def test_masks_are_those_of_a_guide_in_this_process(
    grammars: Grammars, marks: Reasoning | None
) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(json=SCHEMA), reasoning=marks)
    own, boxed = compiler().rules(params), grammars.rules(params)
    assert own is not None and isinstance(boxed, BoxedRules)
    thought = tokens_of("so so the end") if marks else []
    output = [*thought, *tokens_of(OBJECT)]
    guide = boxed.guide()
    for length in (0, 3, len(output), 5, 6, len(output) - 1):
        (straight,) = Guide.fill_masks([(own.guide(), output, length)], SIZE)
        assert (mask(guide, output, length) == straight).all()
    other = guide.fork()
    guide.retreat(len(thought) + 1)
    different = output[: len(thought) + 1] + tokens_of(' "name"')
    for one, text in ((guide, different), (other, output)):
        (straight,) = Guide.fill_masks([(own.guide(), text, len(text))], SIZE)
        assert (mask(one, text, len(text)) == straight).all()


def test_several_places_and_what_must_come_are_asked_at_once(grammars: Grammars) -> None:
    rules = rules_of(grammars)
    guide, output = rules.guide(), tokens_of('{"na')
    guide.ask(output, range(len(output)))
    guide.wait(time.monotonic() + 60)
    own = compiler().rules(SamplingParams(structured_outputs=StructuredOutputs(json=SCHEMA)))
    assert own is not None
    for length in range(len(output)):
        (straight,) = Guide.fill_masks([(own.guide(), output, length)], SIZE)
        found = guide.mask(length)
        assert found is not None and (found == straight).all()
    guide.ask(output, [len(output)], forced=True)
    guide.wait(time.monotonic() + 60)
    assert bytes(backend().decode(list(guide.forced(len(output)))), "utf-8").startswith(b"me")
    assert rules.seconds > 0


def test_who_sits_out_for_too_long_ends(grammars: Grammars) -> None:
    rules = rules_of(grammars)
    guide = rules.guide()
    rules.spend(9.0)  # nobody waited for it
    rules.waiting.add(guide.number)
    guide.late()
    rules.spend(4.0)
    assert rules.sits() and rules.failure is None
    rules.waiting.clear()
    assert not rules.sits()
    rules.waiting.add(guide.number)
    guide.late()
    assert rules.sits()
    rules.under_way[guide.number] = 2.0
    assert not rules.sits()
    assert "too complex: to find what may come next has taken more than 5 s" in str(guide.failure)
    assert not np.any(guide.mask(0))  # so that the next step says so


def test_who_waits_for_a_worker_that_does_not_get_to_compute_waits(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_LONGEST_SITTING", "_LONGEST_SILENCE"):
        monkeypatch.setattr(boxed, limit, 0.1)
    rules = rules_of(grammars)
    guide, output = rules.guide(), tokens_of(OBJECT)
    mask(guide, output, 3)
    worker = rules.follower._worker
    assert worker is not None
    stop(worker.process)
    guide.ask(output, [4])
    guide.wait(time.monotonic() + 0.3)
    guide.late()
    rules.follower.pump(None, 0.0)
    assert rules.sits() and rules.failure is None
    os.kill(worker.process, signal.SIGCONT)
    guide.wait(time.monotonic() + 60)
    assert not rules.sits() and guide.mask(4) is not None
    assert rules.follower._worker is worker


def test_what_takes_long_and_goes_on_is_told(grammars: Grammars) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(grammar=AMBIGUOUS))
    rules = grammars.rules(params)
    assert isinstance(rules, BoxedRules)
    guide, output = rules.guide(), tokens_of("a" * 60)
    guide.ask(output, [len(output)])
    guide.late()
    for _ in range(20_000):
        rules.follower.pump(None, 0.0)
        if rules.under_way or not rules.sits():
            break
    assert guide.number in rules.under_way or rules.sat > SLOW
    guide.wait(time.monotonic() + 60)
    assert rules.sat > 0 and not rules.under_way


def test_where_no_worker_is_to_be_had_that_is_said(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxed, "_RETRY", 0.0)
    tried = count()

    def none() -> BoxWorker:
        next(tried)
        raise BoxBroken("no more processes")

    follower = Follower(none, SIZE, count(1))
    rules = BoxedRules(0, rules_of(grammars).form, follower, follower)
    guide = rules.guide()
    guide.ask([], [0])
    guide.wait(time.monotonic() + 60)
    assert "no process to be had" in str(guide.failure) and next(tried) == 3
    assert not rules.waiting and not np.any(guide.mask(0))


def test_who_takes_much_is_followed_by_a_worker_for_such(grammars: Grammars) -> None:
    rules = rules_of(grammars)
    guide, output = rules.guide(), tokens_of(OBJECT)
    before = mask(guide, output, 3)
    follower = rules.follower
    rules.spend(0.004)
    assert rules.follower is follower
    rules.spend(0.3)
    assert rules.follower is not follower
    assert (mask(guide, output, 4) != before).any()
    assert guide.follower is rules.follower
    rules.follower.close()


def test_what_cannot_be_compiled_is_refused_and_what_can_is_compiled_once(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, call = count(), Box.call
    monkeypatch.setattr(Box, "call", lambda *a, **k: (next(calls), call(*a, **k))[1])
    for regex, refused in (("[a-", True), ("[a-f]x", False), ("[a-f]x", False)):
        params = SamplingParams(structured_outputs=StructuredOutputs(regex=regex))
        if refused:
            with pytest.raises(RequestError, match="structured_outputs"):
                grammars.rules(params)
        else:
            assert grammars.rules(params) is not None
        assert grammars.compiles(params) is refused, "who has it compiled waits in a thread for it"
    assert next(calls) == 2


def test_guides_are_asked_about_by_one_call_that_nobody_looks_for_before_time(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = [rules_of(grammars).guide() for _ in range(8)]
    for guide in guides:
        mask(guide, [], 0)
    calls: list[str] = []
    send, receive = BoxWorker.send, BoxWorker.receive
    monkeypatch.setattr(BoxWorker, "send", lambda *a: (calls.append("send"), send(*a))[1])
    monkeypatch.setattr(BoxWorker, "receive", lambda *a: (calls.append("receive"), receive(*a))[1])
    output = tokens_of(OBJECT)
    for guide in guides:
        guide.ask(output, [2])
    begin_finding(guides)
    assert calls == ["send"]
    wait_for(guides, 60.0)
    assert calls[:2] == ["send", "receive"]
    assert all(guide.mask(2) is not None for guide in guides)


def test_who_follows_a_grammar_does_not_make_out_its_schema_again(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, own = rules_of(grammars).form, compiler.__wrapped__()
    monkeypatch.delattr("quire.capabilities.grammar.compiler.grammar_source")
    output = tokens_of(OBJECT)
    bits = Guide.fill_masks([(own.rules_of(form).guide(), output, 3)], SIZE)
    assert (bits[0] == mask(rules_of(grammars).guide(), output, 3)).all()
    with pytest.raises(NameError):
        own.rules_of(form._replace(source=None, asked=form.asked._replace(order="a b")))


def test_what_a_lane_has_taken_does_not_wait_for_a_guide_that_takes_long() -> None:
    facts = VocabularyFacts(str(Words(backend()).to_json()), frozenset())
    service = GrammarService(facts, SIZE, frozenset({END}), True)
    service.share(mmap(-1, HEADER + ROWS * 4 * -(-SIZE // 32)))
    service._compiler = SimpleNamespace(rules_of=lambda form: SimpleNamespace(guide=form))  # type: ignore[assignment]
    asks = [(i, i, _Long if i == 1 else _Short, 0, b"", [(0, i)], False) for i in range(1, 9)]
    found = service.step((), (), asks).done
    while len(found) < len(asks):
        found += service.step((), (), ()).done
    assert found[-1].guide == 1 and found[-1].seconds > SLOW
    assert {one.guide for one in found} == set(range(1, 9))


class _Short:
    """A guide that knows at once what may come next."""

    failure = None

    def retreat(self, length: int) -> None:
        pass

    def fill_mask(self, row: object, output: object, length: int) -> None:
        pass


class _Long(_Short):
    """One whose native code takes long, and lets others run meanwhile."""

    def fill_mask(self, row: object, output: object, length: int) -> None:
        pbkdf2_hmac("sha256", b"", b"", 400_000)
