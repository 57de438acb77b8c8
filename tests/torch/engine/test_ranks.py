"""Engines of several ranks: the texts of one rank, the same steps, and every rank told them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.engine import RequestOutput
from quire.errors import RankError
from quire.execution.batch import pack
from quire.execution.ranks.messages import Order, decode
from quire.protocol import Step
from support.hf_reference import random_prompts
from support.lora import save_adapter
from support.small_models import make_model

PROMPTS = random_prompts(33, 41, 37, 5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLES = SamplingParams(n=3, seed=5, max_tokens=24, ignore_eos=True, logprobs=2)
BEAMS = SamplingParams(use_beam_search=True, n=4, max_tokens=16, ignore_eos=True)
SCORED = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1)
BLOCKS = 50  # in which not all can run: they swap
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 4,
    "max_model_len": 160,
    "max_num_batched_tokens": 48,
    "preemption_mode": "swap",
    "swap_space": 0.001,
    "threads": 1,
    "enable_lora": True,
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}


class Watched:
    """An engine, what its executor has been given, and what the other ranks have been told."""

    def __init__(self, directory: Path, ranks: int, token_bytes: int) -> None:
        """token_bytes: of the pool, on each rank."""
        self.llm = LLM(
            directory,
            tensor_parallel_size=ranks,
            kv_cache_memory_bytes=BLOCKS * 4 * token_bytes,
            distributed_timeout_seconds=20.0,
            **OPTIONS,
        )
        self.steps: list[Step] = []
        self.orders: list[Order] = []
        executor: Any = self.llm.engine.executor
        submit = executor.submit

        def watched(step: Step) -> Any:
            self.steps.append(replace(step, now=0.0, decisions=[]))
            return submit(step)

        executor.submit = watched
        if ranks > 1:
            others: Any = self.llm.engine.others
            self.told(others.group)

    def told(self, group: Any) -> None:
        tell = group.tell

        def watched(message: bytes) -> None:
            self.orders.append(decode(message))
            tell(message)

        group.tell = watched

    def ask(self, params: SamplingParams, adapter: LoRARequest | None = None) -> Any:
        outputs = self.llm.generate(PROMPTS, params, use_tqdm=False, lora_request=adapter)
        return [tokens(output) for output in outputs]


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(one.token_ids) for one in output.outputs]


def bits(outputs: list[RequestOutput]) -> list[Any]:
    return [[one.token_ids, one.logprobs] for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    save_adapter(root / "adapter", make_model("llama3", root / "model"), seed=1, rank=4)
    return root


@pytest.fixture(scope="module")
def one(files: Path) -> Watched:
    return Watched(files / "model", 1, 2 * 2 * 2 * 16 * 4)


@pytest.fixture(scope="module")
def two(files: Path) -> Iterator[Watched]:
    watched = Watched(files / "model", 2, 2 * 2 * 1 * 16 * 4)
    yield watched
    watched.llm.close()


def test_texts_and_steps_are_those_of_one_rank(files: Path, one: Watched, two: Watched) -> None:
    """In a pool where they swap, chunk by chunk, with samples, beams, scores, adapters."""
    adapter = LoRARequest("a", 1, str(files / "adapter"))
    assert one.llm.capacity.num_blocks == two.llm.capacity.num_blocks == BLOCKS
    assert two.llm.capacity.weight_bytes < 0.6 * one.llm.capacity.weight_bytes
    for params, named in ((GREEDY, None), (SAMPLES, None), (BEAMS, None), (GREEDY, adapter)):
        assert two.ask(params, named) == one.ask(params, named)
    assert any(move.kind.value == "swap_in" for step in two.steps for move in step.moves)
    scores = [
        [next(iter(each.values())).logprob for each in output.prompt_logprobs or [] if each]
        for watched in (one, two)
        for output in watched.llm.generate(PROMPTS[-1:], SCORED, use_tqdm=False)
    ]
    assert scores[0] and scores[1] == pytest.approx(scores[0], abs=1e-4)
    # An adapter is read when it is read: until then steps may be empty.
    plans = [
        [(step.chunks, step.moves, step.forked) for step in each.steps if step.chunks]
        for each in (one, two)
    ]
    assert plans[0] == plans[1]


def test_sessions_are_those_of_one_rank(one: Watched, two: Watched) -> None:
    """Turn by turn, at the same places in the same blocks."""
    found = []
    for watched in (one, two):
        first = len(watched.steps)
        with watched.llm.open_session() as session:
            turns = []
            for prompt in PROMPTS[2:]:
                session.append(prompt)
                turns.append(tokens(session.generate(GREEDY)))
                session.soft_cut(-2.0, 3)
            watched.llm.generate(PROMPTS, GREEDY, use_tqdm=False)  # it gives way
            session.append([7, 8, 9])
            turns.append(tokens(session.generate(GREEDY)))
        tables = [
            (chunk.start, chunk.table) for step in watched.steps[first:] for chunk in step.chunks
        ]
        found.append((turns, tables))
    assert found[0] == found[1]


def test_every_rank_is_told_the_tables_of_each_step(two: Watched) -> None:
    """One message a step, and one before it where blocks are swapped."""
    first, asked = len(two.steps), len(two.orders)
    two.ask(SAMPLES)
    steps = [step for step in two.steps[first:] if step.chunks or step.moves]
    orders = iter(two.orders[asked:])
    for step in steps:
        told = next(orders)
        moves = list(told.moves)
        if any(move.kind.value != "copy" for move in step.moves):
            assert told.batch is None
            told = next(orders)
            assert not told.moves
        assert moves == list(step.moves)
        rows = [chunk.readout.rows if chunk.readout else 0 for chunk in step.chunks]
        assert told.batch is not None and told.batch.header.asked == sum(rows)
        asked_rows = told.batch.fields().asked.tolist()
        expected = pack(step.chunks, 4, asked_rows)
        assert told.batch.header == expected.header
        assert told.batch.query_starts == expected.query_starts
        assert told.batch.buffer.equal(expected.buffer)
    assert next(orders, None) is None


def test_two_runs_have_the_same_bits(two: Watched) -> None:
    runs = [two.llm.generate(PROMPTS, SAMPLES, use_tqdm=False) for _ in range(2)]
    assert bits(runs[0]) == bits(runs[1])


def test_what_another_rank_cannot_swap_is_computed_again(one: Watched, two: Watched) -> None:
    """Its disk is full, rank 0's is not."""
    others: Any = two.llm.engine.others
    pid, engine = others.members[0].process.pid, two.llm.engine
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        assert two.ask(SAMPLES) == one.ask(SAMPLES)
        assert engine.stats.num_failed_swaps > 0
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_four_ranks_of_a_mixture_with_fewer_kv_heads(tmp_path: Path) -> None:
    """And one that raises ends them all, by name."""
    directory = make_model("mixtral", tmp_path / "model")
    options = {"dtype": "float32", "kv_cache_memory_bytes": "1MiB", "max_model_len": 64}
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    expected = LLM(directory, **options).generate(PROMPTS, params, use_tqdm=False)
    llm = LLM(
        directory, **options, speculative_config=DRAFTS,
        tensor_parallel_size=4, distributed_timeout_seconds=20.0, warm_up=True,
    )  # fmt: skip
    assert "Each of 4 ranks" in llm.capacity.describe()
    assert "its memory was touched in" in llm.capacity.describe()
    found = llm.generate(PROMPTS, params, use_tqdm=False)
    assert list(map(tokens, found)) == list(map(tokens, expected))
    others: Any = llm.engine.others
    others.group.tell(b"no order")
    with pytest.raises(RankError, match=r"^rank \d: failed: error\("):
        llm.generate(PROMPTS, params, use_tqdm=False)
    llm.close()
