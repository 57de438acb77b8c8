"""An engine that begins a step while the one before is under way, over a fake device."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

import quire
from quire.capabilities.speculation import Speculation
from quire.core.memory import PagedAllocator
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.async_engine import AsyncEngine
from quire.engine.engine import Engine, ExecutorTraits
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.outputs import RequestOutput
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.drafting import Proposing, knowing
from support.fake_model import FakeExecutor
from support.fake_pipeline import FakePipeline

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
EOS = 0
BLOCKS, SIZE = 40, 4
LONG = SamplingParams(max_tokens=40, seed=1, ignore_eos=True)


def make_engine(*, ahead: bool = True, seed: int = 0, blocks: int = BLOCKS) -> Engine:
    executor = FakePipeline(FakeExecutor(blocks, SIZE), random.Random(seed))
    scheduler = Scheduler(PagedAllocator(blocks, SIZE), BatchLimits(8, 32))
    input_processor = InputProcessor(
        TOKENIZER, ModelOutputs(4096, [EOS]), max_model_len=100, seed=0
    )
    return Engine(scheduler, executor, input_processor, ExecutorTraits(run_ahead=ahead))


def pipeline(engine: Engine) -> FakePipeline:
    assert isinstance(engine.executor, FakePipeline)
    return engine.executor


def finish(engine: Engine) -> dict[str, RequestOutput]:
    outputs = {}
    while engine.has_work:
        outputs |= {d.request_id: d.final for d in engine.step() if d.final is not None}
    usage = engine.scheduler.allocator.usage()
    held = sum(len(session.history) for session in engine.sessions.all())
    assert held or usage.cached + usage.free == usage.capacity, "leaked blocks"
    return outputs


@pytest.mark.parametrize("right", [True, False])
def test_drafts_that_are_right_wait_for_what_they_follow(right: bool) -> None:
    """Where they come to nothing, nearly all steps are begun ahead as ever."""
    long = SamplingParams(max_tokens=90, seed=1, ignore_eos=True)
    engine = make_engine()
    engine.add_request("r", [1, 2, 3], long)
    text = finish(engine)["r"].outputs[0].token_ids
    engine = make_engine()
    drafter = knowing({"r": [text]}, 1.0, 50) if right else lambda request, branch: [50] * 8
    log = pipeline(engine).log
    engine.clock = lambda: float(log.count("collect"))  # all steps take the same
    speculation = Speculation([Proposing(drafter)], most=8)
    engine.use(engine.capabilities._replace(speculation=speculation))
    engine.add_request("r", [1, 2, 3], long)
    for _ in range(20 if right else 50):
        engine.step()
    ahead, begun = pipeline(engine).num_ahead, log.count("submit")
    assert finish(engine)["r"].outputs[0].token_ids == text
    share = (pipeline(engine).num_ahead - ahead) / (log.count("submit") - begun)
    assert share == 0 if right else share > 0.6


def test_a_step_is_begun_before_the_one_before_is_waited_for() -> None:
    engine = make_engine()
    engine.add_request("r", [1, 2, 3], LONG)
    finish(engine)
    log = pipeline(engine).log
    assert log == ["submit"] + ["submit", "collect"] * 39 + ["collect"]


def test_no_step_is_begun_for_an_end_that_is_foreseen() -> None:
    engine = make_engine()
    engine.add_request("r", [1, 2, 3], LONG)
    finish(engine)
    assert engine.stats.num_tokens == 3 + 39  # the last one's keys and values are never needed


def test_the_cache_keeps_what_a_waiting_engine_keeps() -> None:
    """Blocks that end with a token which was unknown when they were planned are found as well."""
    cached = []
    for ahead in (False, True):
        engine = make_engine(ahead=ahead)
        engine.add_request("first", [1, 2, 3, 4, 5], replace(LONG, max_tokens=20))
        (text,) = (output.outputs[0].token_ids for output in finish(engine).values())
        engine.add_request("second", [1, 2, 3, 4, 5, *text], LONG)
        cached.append(finish(engine)["second"].metrics.cached_tokens)
    assert cached == [24, 24]


def test_busy_time_is_counted_once() -> None:
    engine = make_engine()
    engine.add_request("r", [1, 2, 3], LONG)
    start = engine.clock()
    finish(engine)
    assert 0 < engine.stats.busy_seconds <= engine.clock() - start


def test_an_abort_while_its_step_is_under_way_harms_nobody() -> None:
    alone = make_engine(ahead=False)
    alone.add_request("b", [1, 2, 4], LONG)
    expected = finish(alone)["b"].outputs
    for moment in range(1, 20):
        engine = make_engine(seed=moment, blocks=24)
        for name in ("a", "b"):
            engine.add_request(name, [1, 2, 3 + (name == "b")], LONG)
        for _ in range(moment):
            engine.step()
        held = engine.scheduler.allocator.num_free_blocks
        assert engine.abort("a")
        assert engine.scheduler.allocator.num_free_blocks > held
        engine.add_request("c", [5] * 9, LONG)  # gets the blocks of the first
        assert finish(engine)["b"].outputs == expected


def test_streams_over_an_engine_that_runs_ahead() -> None:
    alone = make_engine(ahead=False)
    alone.add_request("b", [1, 2, 4], LONG)
    expected = finish(alone)["b"].outputs[0].token_ids
    engine = make_engine()

    pipeline(engine).fail = lambda called: time.sleep(0.002)  # time to take each step's tokens

    async def read(streams: AsyncEngine, name: str, most: int) -> list[int]:
        tokens: list[int] = []
        prompts = {name: [1, 2, 3 + (name == "b")]}
        async with aclosing(streams.generate(prompts, LONG)) as steps:
            async for deltas in steps:
                tokens += [token for delta in deltas for token in delta.token_ids]
                if len(tokens) >= most:
                    break  # as a client that hangs up
        return tokens

    async def serve() -> list[list[int]]:
        streams = AsyncEngine(engine)
        streams.start()
        try:
            return await asyncio.gather(read(streams, "a", 7), read(streams, "b", 40))
        finally:
            await asyncio.wait_for(streams.stop(), 10)

    left, whole = asyncio.run(serve())
    assert 7 <= len(left) < 40
    assert whole == expected
    assert finish(engine) == {}
    assert pipeline(engine).num_ahead > 0


def fail_at(engine: Engine, what: str, number: int) -> None:
    """Let a submission or a collection fail, the one after ``number`` more."""
    left = [number]

    def fail(called: str) -> None:
        if called == what:
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("device lost")

    pipeline(engine).fail = fail


@pytest.mark.parametrize("what", ["submit", "collect"])
@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_a_step_that_fails_ends_its_requests_and_nothing_else(what: str, number: int) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    alone = make_engine(ahead=False)
    alone.add_request("r", prompt, LONG)
    expected = finish(alone)["r"].outputs
    engine = make_engine()
    fail_at(engine, what, number)
    engine.add_request("a", prompt, LONG)
    engine.add_request("b", prompt[:5], LONG)
    failed = finish(engine)
    assert [failed[name].outputs[0].finish_reason for name in "ab"] == ["error"] * 2
    engine.add_request("r", prompt, LONG)
    assert finish(engine)["r"].outputs == expected, "nothing of the failed step is found again"


def test_a_failure_ends_who_was_let_in_after_it_too() -> None:
    engine = make_engine()
    engine.add_request("a", [9], LONG)
    engine.step()
    engine.add_request("b", [5] * 9, LONG)  # begins in the step after the one that fails
    fail_at(engine, "collect", 0)
    failed = {delta.request_id: delta.finish_reason for delta in engine.step()}
    assert failed == {"a": "error", "b": "error"}
    assert finish(engine) == {}


def test_an_abort_in_a_step_that_has_failed_leaves_nothing_to_be_found() -> None:
    engine = make_engine()
    engine.add_request("a", [9], LONG)
    engine.step()
    long = [5] * 90  # computed over three steps, all of them begun ahead
    engine.add_request("b", long, replace(LONG, max_tokens=5))
    fail_at(engine, "collect", 1)
    engine.step()
    assert engine.abort("b")
    finish(engine)
    engine.add_request("c", long, replace(LONG, max_tokens=5))
    assert finish(engine)["c"].metrics.cached_tokens == 0


def test_a_sessions_turn_is_not_run_ahead_and_keeps_its_cache() -> None:
    engine = make_engine()
    engine.sessions.open("s")
    engine.sessions.append("s", [1, 2, 3])
    engine.add_turn("t", "s", LONG)
    engine.add_request("r", [4, 5], LONG)
    outputs = finish(engine)
    assert outputs.keys() == {"t", "r"}
    assert pipeline(engine).num_ahead == 0
    sequence = engine.sessions.get("s").sequence
    assert sequence.num_computed == len(sequence.token_ids) - 1
    engine.add_request("q", [4, 5], LONG)  # between turns
    finish(engine)
    assert pipeline(engine).num_ahead == 39
