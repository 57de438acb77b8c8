"""Who does not know in time what may come next sits steps out, and loses nothing by it."""

from __future__ import annotations

import ctypes
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.capabilities.grammar import boxed
from quire.capabilities.grammar.boxed import BoxedGuide, BoxedRules, Follower
from quire.capabilities.grammar.service import MOST_LANES
from quire.core.errors import RequestError
from quire.engine.llm import LLM
from quire.engine.outputs import RequestOutput
from quire.execution.sampling.choosing import Choosing
from quire.text.params import SamplingParams, StructuredOutputs
from support.boxed import stop, threads

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
AMBIGUOUS = "start: e\ne: e e e | e e | /[a-z ]/"
FIELDS: list[dict[str, Any]] = [
    {"seed": 1, "logprobs": 3},
    {"seed": 2, "n": 3},
    {"seed": 3, "prompt_logprobs": 2},
    {"use_beam_search": True, "temperature": 0.0, "n": 3},
    {"temperature": 0.0, "frequency_penalty": 0.5},
]
PROMPT = "A person as JSON, with a name and an age, and nothing more: " * 2


@pytest.fixture(scope="module", params=[{}, {"enable_prefix_caching": False}, "drafts"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    settings = request.param
    if settings == "drafts":
        settings = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    made = LLM(max_model_len=512, **settings)
    yield made
    usage = made.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    made.engine.close()


def serve(llm: LLM, asked: dict[str, Any] | None = None) -> list[RequestOutput]:
    params = [
        SamplingParams(
            **{"temperature": 1.0, "max_tokens": 40, **fields},
            structured_outputs=StructuredOutputs(**(asked or {"json": PERSON})),
        )
        for fields in FIELDS
    ]
    return llm.generate([PROMPT] * len(params), params, use_tqdm=False)


def facts(outputs: list[RequestOutput]) -> list[Any]:
    return [
        ([(one.token_ids, one.logprobs) for one in output.outputs], output.prompt_logprobs)
        for output in outputs
    ]


def num_sat_out(llm: LLM) -> int:
    return llm.engine.scheduler.stats.decisions["sit_out"]


@pytest.mark.parametrize("seed", range(3))
def test_no_bit_of_a_text_changes(llm: LLM, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    undisturbed, draw = facts(serve(llm)), random.Random(seed)
    choose, mask = Choosing.choose, BoxedGuide.mask

    def choose_for_some(self: Choosing) -> None:
        chosen: dict[tuple[int, int], bool] = {}

        def mask_of_some(guide: BoxedGuide, length: int) -> boxed.Mask | None:
            late = chosen.setdefault((guide.number, length), draw.random() < 0.2)
            return None if late else mask(guide, length)

        with monkeypatch.context() as patch:
            patch.setattr(BoxedGuide, "mask", mask_of_some)
            choose(self)

    before = num_sat_out(llm)
    monkeypatch.setattr(Choosing, "choose", choose_for_some)
    assert facts(serve(llm)) == undisturbed
    assert num_sat_out(llm) > before + 10


def test_a_worker_that_is_killed_is_replaced_and_nobody_notices(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, asked = facts(serve(llm)), 0
    ask = Follower.ask

    def ask_and_kill(self: Follower, guide: BoxedGuide) -> None:
        nonlocal asked
        asked += 1
        if asked % 50 == 0 and self._worker is not None:
            os.kill(self._worker.process, signal.SIGKILL)
        ask(self, guide)

    monkeypatch.setattr(Follower, "ask", ask_and_kill)
    assert facts(serve(llm)) == undisturbed
    assert asked > 100


def test_whose_guide_a_worker_dies_of_ends_and_nobody_else(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, crashes = Follower.ask, 0

    def ask_and_crash(self: Follower, guide: BoxedGuide) -> None:
        nonlocal crashes
        ask(self, guide)
        group = llm.engine.scheduler.group("1")
        worker = self._worker
        if group is None or guide.rules is not group.request.rules or worker is None:
            return
        if self._called is None and len(guide.wanted[0] if guide.wanted else ()) > 3:
            stop(worker.process)
            self._send()
            np.frombuffer(worker.shared, np.uint64, MOST_LANES)[-1] = guide.number
            for thread in threads(worker.process):  # or one answers while another dies for all
                assert ctypes.CDLL(None).tgkill(worker.process, thread, signal.SIGSEGV) == 0
            os.kill(worker.process, signal.SIGCONT)
            crashes += 1

    undisturbed = facts(serve(llm))
    monkeypatch.setattr(Follower, "ask", ask_and_crash)
    for number in range(len(FIELDS)):
        params = SamplingParams(
            **{"temperature": 1.0, "max_tokens": 40, **FIELDS[number]},
            structured_outputs=StructuredOutputs(json=PERSON),
        )
        llm.engine.add_request(f"{number}", PROMPT, params)
    ends = {}
    while llm.engine.has_work:
        for delta in llm.engine.step():
            if delta.final is not None:
                ends[delta.request_id] = delta
    failed = [name for name, delta in ends.items() if delta.failure is not None]
    assert failed == ["1"] and crashes == 2
    error = ends["1"].failure
    assert isinstance(error, RequestError) and error.field == "structured_outputs"
    assert "too complex: its process has ended by SIGSEGV" in str(error)
    rest = [delta.final for name, delta in sorted(ends.items()) if name not in failed]
    expected = [fact for i, fact in enumerate(undisturbed) if str(i) not in failed]
    assert facts([one for one in rest if one is not None]) == expected


def test_an_ambiguous_grammar_ends_and_keeps_nobody_waiting(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxed, "_LONGEST_SITTING", 1e9)
    params = SamplingParams(
        n=8,
        temperature=1.0,
        max_tokens=200,
        structured_outputs=StructuredOutputs(grammar=AMBIGUOUS),
    )
    llm.engine.add_request("ambiguous", PROMPT, params)
    group = llm.engine.scheduler.group("ambiguous")
    assert group is not None
    rules = group.request.rules
    assert isinstance(rules, BoxedRules)
    served = 0
    while llm.engine.scheduler.group("ambiguous") is not None:
        if served > 10 and rules.much > 0:  # however long that takes here
            monkeypatch.setattr(boxed, "_LONGEST_SITTING", 0.0)
        if llm.engine.scheduler.group("other") is None:
            other = SamplingParams(max_tokens=30, structured_outputs=StructuredOutputs(json=PERSON))
            llm.engine.add_request("other", PROMPT, other)
        for delta in llm.engine.step():
            if delta.request_id == "ambiguous" and delta.failure is not None:
                assert "the grammar has become too complex" in str(delta.failure)
            elif delta.request_id == "other":
                served += 1
    while llm.engine.has_work:
        llm.engine.step()
    assert served > 10
