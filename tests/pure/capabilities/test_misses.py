"""Why prompts were not found in the prefix cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.capabilities.misses import EarlierPrompts, Miss, MissFinder, MissReason
from quire.capabilities.sessions import SessionManager
from quire.core.memory import LayeredAllocator, PagedAllocator, Window
from quire.core.protocol import Adapter, Request
from quire.core.scheduling import BatchLimits, Scheduler
from quire.core.scheduling.sequence import Sequence
from quire.engine.capabilities import Capabilities
from quire.engine.dashboard import PoolBytes, miss_row
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.metrics import RequestMetrics
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from support.fake_model import FakeExecutor, FakeLayer, Sight

TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
SIZE = 4
HEAD, TEXT = [*range(100, 131)], [*range(200, 300)]  # 31 tokens, then 100
END = [5, 6, 7]


class Bench:
    """An engine, and its clock."""

    def __init__(self, blocks: int = 200, window: int | None = None, **scheduling: Any) -> None:
        allocator: Any = PagedAllocator(blocks, SIZE)
        executor = FakeExecutor(blocks, SIZE)
        if window is not None:
            groups = [PagedAllocator(blocks, SIZE, 0, one) for one in (None, Window(window, 512))]
            allocator = LayeredAllocator(SIZE, groups)
            executor.layers += [FakeLayer(blocks, SIZE, 0, Sight(window))]
        self.scheduler = Scheduler(allocator, BatchLimits(4, 512), **scheduling)
        inputs = InputProcessor(TOKENIZER, ModelOutputs(4096), max_model_len=400, seed=0)
        self.now, self.prompts, self.count = 0.0, EarlierPrompts(), 0
        finder = MissFinder(lambda: self.now, self.prompts)
        self.engine = Engine(
            self.scheduler,
            executor,
            inputs,
            capabilities=Capabilities(SessionManager(), misses=finder),
            clock=self.clock,
        )

    def clock(self) -> float:
        self.now += 0.125
        return self.now

    def begin(self, tokens: list[int], adapter: Adapter | None = None, **given: Any) -> str:
        self.count += 1
        name = f"r{self.count}"
        params = SamplingParams(**{"max_tokens": 1, "ignore_eos": True} | given.pop("params", {}))
        prompt: Any = {"prompt_token_ids": tokens, **given}
        inputs = self.engine.input_processor
        prepared = inputs.prepare(name, prompt, inputs.prepare_params(params), self.now)
        request = replace(prepared.request, adapter=adapter)
        self.engine.submit(replace(prepared, request=request))
        return name

    def finish(self) -> dict[str, RequestMetrics]:
        ended = {}
        while self.engine.has_work:
            for delta in self.engine.step():
                if delta.final is not None:
                    ended[delta.request_id] = delta.final.metrics
        return ended

    def serve(self, tokens: list[int], **given: Any) -> Miss | None:
        name = self.begin(tokens, **given)
        return self.finish()[name].miss

    def words(self, miss: Miss | None, pool: PoolBytes | None = None) -> str:
        assert miss is not None
        return miss_row(miss, self.scheduler, pool).text


def test_what_differed_and_what_it_cost() -> None:
    bench = Bench()
    assert bench.serve([*HEAD, 1, *TEXT, *END]) == Miss(MissReason.NEW, 0, lost_seconds=0.0)
    miss = bench.serve([*HEAD, 2, 3, *TEXT, 8])
    assert miss is not None
    assert (miss.reason, miss.position, miss.lost_tokens) == (MissReason.DIFFERED, 31, 100)
    assert (miss.earlier, miss.stood_tokens, miss.stands_tokens) == ("r1", 1, 2)
    assert (miss.stood[-2:], miss.stands[-3:]) == ((130, 1), (130, 2, 3))
    assert miss.lost_seconds is not None and miss.lost_seconds > 0
    assert bench.words(replace(miss, lost_seconds=2.5)) == (
        "100 cached tokens lost at token 31 (2.5 s to read them again): 1 tokens were there, "
        "2 others are there now"
    )
    row = miss_row(miss, bench.scheduler, None, lambda tokens: "\n".join(map(str, tokens)))
    assert (row.stood, row.stands) == ("1", "2\n3")
    assert "'1' was there, '2\\n3' is there now" in row.text


@pytest.mark.parametrize(
    ("stood", "stands"),
    [([1], []), ([], [1]), ([1, 2, 3], [4]), ([*range(70)], [*range(1000, 1090)]), ([131], [131])],
)
def test_a_difference_may_have_any_length(stood: list[int], stands: list[int]) -> None:
    bench = Bench()
    bench.serve([*HEAD, *stood, *TEXT])
    miss = bench.serve([*HEAD, *stands, *TEXT, 9])
    if stood == stands:
        assert miss is None
        return
    assert miss is not None and miss.lost_tokens == 100
    assert (miss.stood_tokens, miss.stands_tokens) == (len(stood), len(stands))


def test_another_question_after_the_same_text_loses_nothing() -> None:
    bench = Bench()
    bench.serve([*TEXT, *range(300, 360)])
    miss = bench.serve([*TEXT, *range(400, 460)])
    assert miss == Miss(MissReason.NEW, 100, lost_seconds=0.0)
    assert bench.words(miss) == "nothing like it was sent before from token 100 on"


def test_what_is_found_whole_is_no_miss_and_neither_is_the_last_block() -> None:
    bench = Bench()
    assert bench.serve([*TEXT, 1]) is not None
    assert bench.serve([*TEXT, 1]) is None
    assert bench.serve([*TEXT, 2, 3, 4]) is None


def test_what_was_written_is_of_the_next_turn() -> None:
    bench = Bench()
    name = bench.begin(TEXT, params={"max_tokens": 41})
    trunk = bench.scheduler.group(name).branches[0]  # type: ignore[union-attr]
    bench.finish()
    turn = trunk.token_ids.tolist()
    turn[20] += 1  # a memory of the agent that has changed
    miss = bench.serve([*turn, *END])
    assert miss is not None
    assert (miss.position, miss.lost_tokens) == (20, 119)  # the last token was never computed
    assert bench.prompts.num_bytes == 4 * (140 + 144)


def test_the_deepest_of_many_is_compared() -> None:
    bench = Bench()
    for name in (1, 2, 3):
        bench.serve([*HEAD, name, *TEXT])
    bench.serve([*HEAD, 4, *range(300, 310)])  # a title for the chat
    miss = bench.serve([*HEAD, 2, *TEXT[:50], 9, *TEXT[50:]])
    assert miss is not None
    assert (miss.position, miss.earlier, miss.lost_tokens) == (82, "r2", 50)
    miss = bench.serve([*HEAD, 5, *TEXT])
    assert miss is not None and (miss.position, miss.lost_tokens) == (31, 100)


def test_an_eviction_has_a_time_a_cause_and_a_size() -> None:
    bench = Bench(blocks=30)
    bench.serve(TEXT)
    bench.serve([*range(300, 360)])  # takes the 5 free blocks, and 10 of the first one's
    miss = bench.serve(TEXT)
    assert miss is not None and miss.ago is not None
    assert (miss.reason, miss.position, miss.lost_tokens) == (MissReason.EVICTED, 60, 39)
    assert (miss.short, miss.taker, miss.earlier) == (10, "r2", "r1")
    assert 0 < miss.ago < 2
    told = bench.words(replace(miss, ago=3.0, lost_seconds=None), PoolBytes(30 * 2**20, 2**20))
    assert told == (
        "39 cached tokens lost at token 60: evicted 3 s before for r2; a pool larger by 10 blocks "
        "would have kept them (--kv-cache-memory-bytes: 40 MiB instead of 30)"
    )
    larger = Bench(blocks=40)  # what it says is true
    larger.serve(TEXT)
    larger.serve([*range(300, 360)])
    assert larger.serve(TEXT) is None


def test_whose_eviction_it_was_is_told_without_a_name() -> None:
    bench = Bench(blocks=30)
    bench.serve(TEXT, client="anna")
    bench.serve([*range(300, 360)], client="bert")
    miss = bench.serve(TEXT, client="anna")
    assert miss is not None and (miss.reason, miss.taker) == (MissReason.EVICTED, "")
    assert "for a request of another client" in bench.words(miss)


@pytest.mark.parametrize("other", [{"client": "bert"}, {"cache_salt": "b"}])
def test_nobody_learns_of_what_others_sent(other: dict[str, str]) -> None:
    bench = Bench()
    bench.serve([*HEAD, 1, *TEXT], client="anna", cache_salt="a")
    asked = {"client": "anna", "cache_salt": "a"} | other
    miss = bench.serve([*HEAD, 2, *TEXT], **asked)
    assert miss is not None and (miss.reason, miss.earlier) == (MissReason.NEW, None)
    assert (miss.stood, miss.stood_tokens) == ((), 0)


def test_what_another_adapter_has_read_is_of_no_use() -> None:
    bench = Bench()
    bench.serve(TEXT, adapter=Adapter(b"a", "a"))
    miss = bench.serve(TEXT, adapter=Adapter(b"b", "b"))
    assert miss is not None
    assert (miss.reason, miss.earlier, miss.lost_tokens) == (MissReason.ADAPTER, "r1", 99)
    assert "another adapter" in bench.words(miss)


def test_without_a_prefix_cache_it_says_so() -> None:
    bench = Bench(caching=None)
    bench.serve(TEXT)
    miss = bench.serve(TEXT)
    assert miss is not None and (miss.reason, miss.lost_tokens) == (MissReason.OFF, 99)
    assert "--enable-prefix-caching" in bench.words(miss)


def test_scores_want_a_prompt_computed() -> None:
    bench = Bench()
    bench.serve(TEXT)
    miss = bench.serve(TEXT, params={"prompt_logprobs": 0})
    assert miss is not None and (miss.reason, miss.lost_tokens) == (MissReason.SCORES, 99)


@pytest.mark.parametrize("lives", [False, True])
def test_blocks_that_are_not_there_any_more_or_not_yet(lives: bool) -> None:
    bench = Bench()
    bench.serve(TEXT)
    assert bench.scheduler.prefix_cache is not None
    bench.scheduler.prefix_cache.invalidate((0, block) for block in range(25))
    (earlier,) = bench.prompts._all.values()
    request = Request("r9", tuple(TEXT), SamplingParams(), 1, 0)
    earlier.living = (request, Sequence(0, 0, TEXT)) if lives else None
    miss = bench.serve(TEXT)
    assert miss is not None and miss.lost_tokens == 99
    assert miss.reason is (MissReason.UNREAD if lives else MissReason.FORGOTTEN)


def test_a_window_that_has_gone_is_evicted_before_the_text() -> None:
    bench = Bench(blocks=40, window=8)
    bench.serve(TEXT)
    for first in (300, 500, 700):
        bench.serve([*range(first, first + 40)])
    miss = bench.serve(TEXT)
    assert miss is not None and miss.reason in (MissReason.EVICTED, MissReason.WINDOW)


def test_a_cache_that_is_cleared_forgets_prompts_too() -> None:
    bench = Bench()
    bench.serve(TEXT)
    bench.engine.reset_prefix_cache()
    assert bench.prompts.num_bytes == 0
    miss = bench.serve(TEXT)
    assert miss is not None and miss.reason is MissReason.NEW


def test_prompts_are_kept_within_bounds() -> None:
    bench, prompts = Bench(), EarlierPrompts(most_bytes=1000)
    requests = {}
    for client in "abc":
        name = bench.begin([*range(100)], client=client)
        group = bench.scheduler.group(name)
        assert group is not None
        requests[client] = group.request
        trunk = Sequence(0, 0, group.request.prompt_token_ids)
        prompts.add(group.request, trunk, trunk.token_ids.tobytes())
    assert prompts.num_bytes == 800
    assert [len([*prompts.of(requests[client])]) for client in "abc"] == [0, 1, 1]
    prompts.end(requests["b"])  # it was not read to its end
    assert prompts.num_bytes == 400
    prompts.remove(requests["c"].request_id)
    assert not prompts.num_bytes and not [*prompts.of(requests["c"])]
    assert not prompts._owned


def test_one_that_is_given_up_leaves_nothing() -> None:
    bench = Bench()
    bench.scheduler.batch = replace(bench.scheduler.batch, max_num_batched_tokens=16)
    name = bench.begin(TEXT)
    bench.engine.step()
    assert bench.prompts.num_bytes == 400
    bench.engine.abort(name)
    assert bench.prompts.num_bytes == 0


def test_a_session_begins_with_a_lookup_and_goes_on_without() -> None:
    bench = Bench()
    bench.serve([*HEAD, 1, *TEXT])
    bench.engine.sessions.open("s")
    for turn, tokens in (("t1", [*HEAD, 2, *TEXT]), ("t2", [*HEAD, 3])):
        bench.engine.sessions.append("s", tokens)
        bench.engine.add_turn(turn, "s", SamplingParams(max_tokens=2, ignore_eos=True))
        miss = bench.finish()[turn].miss
        assert (miss is not None) == (turn == "t1")


def test_a_snapshot_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.serve(TEXT)
    assert bench.scheduler.prefix_cache is not None
    bench.scheduler.prefix_cache.invalidate((0, block) for block in range(25))
    fit = bench.scheduler.allocator.fit
    found = lambda demand: fit(demand)._replace(stateless=96)  # noqa: E731
    monkeypatch.setattr(bench.scheduler.allocator, "fit", found)
    miss = bench.serve(TEXT)
    assert miss is not None
    assert (miss.reason, miss.lost_tokens) == (MissReason.SNAPSHOT, 96)
    assert "no state" in bench.words(miss)
