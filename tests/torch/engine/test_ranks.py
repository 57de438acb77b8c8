"""Engines of several ranks: the texts of one rank, the same steps, and every rank told them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.blocks.events.wire import short
from quire.blocks.store import DiskStore
from quire.blocks.store.segment import names_in
from quire.core.errors import RankError
from quire.core.memory import hash_blocks, root_hash
from quire.core.protocol import TO_DRAFT, RecoveryCosts, Step
from quire.engine.outputs import RequestOutput
from quire.execution.batch import pack
from quire.execution.ranks.messages import Order, decode
from quire.text.params import StructuredOutputs
from support.drafting import Drafting
from support.hf_reference import random_prompts
from support.live_server import eventually
from support.lora import save_adapter
from support.small_models import make_model
from support.vllm_events import BlockRemoved, BlockStored, replay

PROMPTS = random_prompts(33, 41, 37, 5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLES = SamplingParams(n=3, seed=5, max_tokens=24, ignore_eos=True, logprobs=2)
BEAMS = SamplingParams(use_beam_search=True, n=4, max_tokens=16, ignore_eos=True)
SCORED = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1)
GUIDED = SamplingParams(
    temperature=0.0, max_tokens=12, structured_outputs=StructuredOutputs(regex="(ab|cd)+e")
)
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


class Watched:
    """An engine, what its executor has been given, and what the other ranks have been told."""

    def __init__(self, directory: Path, ranks: int, token_bytes: int, **options: Any) -> None:
        """token_bytes: of the pool, on each rank."""
        self.llm = LLM(
            directory,
            tensor_parallel_size=ranks,
            kv_cache_memory_bytes=BLOCKS * 4 * token_bytes,
            distributed_timeout_seconds=20.0,
            kv_store=str(directory.parent / "store"),
            **OPTIONS,
            **options,
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
            others: Any = self.llm.engine.capabilities.others
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


@pytest.fixture(scope="module", autouse=True)
def fetching_pays() -> Iterator[None]:
    """On models of this size, that is a matter of luck."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecoveryCosts, "fetching_pays", lambda *_: True)
        yield


@pytest.fixture(scope="module")
def one(files: Path) -> Watched:
    return Watched(files / "model", 1, 2 * 2 * 2 * 16 * 4)


@pytest.fixture(scope="module")
def two(files: Path) -> Iterator[Watched]:
    at = {"endpoint": f"ipc://{files}/events", "replay_endpoint": f"ipc://{files}/replay"}
    events = {"enable_kv_cache_events": True, **at}
    watched = Watched(files / "model", 2, 2 * 2 * 1 * 16 * 4, kv_events_config=events)
    yield watched
    watched.llm.close()


def test_texts_and_steps_are_those_of_one_rank(files: Path, one: Watched, two: Watched) -> None:
    """In a pool where they swap and fetch, chunk by chunk, with samples, beams, scores, adapters.

    And with grammars, whose masks only rank 0 makes.
    """
    adapter = LoRARequest("a", 1, str(files / "adapter"))
    assert one.llm.capacity.num_blocks == two.llm.capacity.num_blocks == BLOCKS
    assert two.llm.capacity.weight_bytes < 0.6 * one.llm.capacity.weight_bytes
    asked = [(params, None) for params in (GREEDY, SAMPLES, BEAMS, GUIDED)]
    for params, named in (*asked, (GREEDY, adapter)):
        assert two.ask(params, named) == one.ask(params, named)
    kinds = {move.kind.value for step in two.steps for move in step.moves}
    assert kinds == {"copy", "swap_out", "swap_in", "store", "fetch"}
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
        assert list(told.moves) == list(step.moves)
        if any(move.kind.value != "copy" for move in step.moves):
            assert told.batch is None
            if not step.chunks:  # blocks that are stored, at last
                continue
            told = next(orders)
            assert not told.moves
        rows = [chunk.readout.rows if chunk.readout else 0 for chunk in step.chunks]
        assert told.batch is not None and told.batch.header.asked == sum(rows)
        asked_rows = told.batch.fields().asked.tolist()
        expected = pack(step.chunks, 4, asked_rows)
        assert told.batch.header == expected.header
        assert told.batch.query_starts == expected.query_starts
        assert told.batch.buffer.equal(expected.buffer)
    assert next(orders, None) is None


def test_events_are_those_of_the_pool(two: Watched, files: Path) -> None:
    """There is one block table, so one rank tells."""
    pool: Any = two.llm.engine.scheduler.allocator
    events = two.llm.engine.capabilities.events
    assert events is not None
    two.ask(GREEDY)
    numbers: list[int] = []
    while len(numbers) < events.num_published:  # they are sent soon
        found: set[int | bytes] = set()
        batches = replay(f"ipc://{files}/replay")
        numbers = [number for number, _ in batches]
        for event in (event for _, batch in batches for event in batch.events):
            if isinstance(event, BlockStored):
                found |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                found -= set(event.block_hashes)
    assert numbers == list(range(events.num_published))
    assert found == {short(name) for name in pool.device._block_of} != set()


def test_a_block_that_one_rank_lacks_is_computed_again(
    one: Watched, two: Watched, files: Path
) -> None:
    """Its part is damaged or gone on one rank, sound on the other; then all are stored anew."""
    expected = one.ask(GREEDY)
    two.ask(GREEDY)
    store, alone = two.llm.engine.capabilities.store, one.llm.engine.capabilities.store
    assert isinstance(store, DiskStore) and isinstance(alone, DiskStore)
    own, theirs = store._directory._own, alone._directory._own
    wanted = {*hash_blocks(root_hash(""), PROMPTS[1], 4)}

    def segments() -> dict[bool, list[Path]]:
        """Whether they are rank 0's, and which."""
        found = [path for path in files.rglob("*.blocks") if theirs not in path.parents]
        return {
            of_0: [path for path in found if (own in path.parents) is of_0]
            for of_0 in (True, False)
        }

    def all_are_stored() -> bool:
        with suppress(OSError):  # one that has just been given up
            held = [
                {name for path in paths for name in names_in(str(path))}
                for paths in segments().values()
            ]
            return all(wanted <= names for names in held)
        return False

    bad = store.counts.bad_blocks
    for rank_0 in (True, False):
        for damage in (turn_a_bit, Path.unlink):
            eventually(all_are_stored)
            for path in segments()[rank_0]:
                damage(path)
            two.llm.engine.reset_prefix_cache()
            assert two.ask(GREEDY) == expected
    assert store.counts.bad_blocks > bad
    usage = two.llm.engine.scheduler.allocator.usage()
    assert usage.cached + usage.free == usage.capacity, "leaked blocks"
    eventually(all_are_stored)


def turn_a_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_two_runs_have_the_same_bits(two: Watched) -> None:
    runs = [two.llm.generate(PROMPTS, SAMPLES, use_tqdm=False) for _ in range(2)]
    assert bits(runs[0]) == bits(runs[1])


def test_what_another_rank_cannot_swap_is_computed_again(one: Watched, two: Watched) -> None:
    """Its disk is full, rank 0's is not. And what it cannot store, nobody has stored."""
    others: Any = two.llm.engine.capabilities.others
    pid, engine = others.members[0].process.pid, two.llm.engine
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        assert two.ask(SAMPLES) == one.ask(SAMPLES)
        assert engine.stats.num_failed_swaps > 0
        assert engine.capabilities.store is not None
        for first in range(20):  # its thread finds out soon
            new = [first + 20, *range(60, 72)]
            two.llm.generate([new], GREEDY, use_tqdm=False)
            stored = list(map(engine.capabilities.store.has, hash_blocks(root_hash(""), new, 4)))
            if not any(stored):
                break
        assert first < 19, "what one rank cannot store, nobody has stored"
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_four_ranks_of_a_mixture_with_fewer_kv_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a draft model, with a KV group of which the others hold no layer.

    A rank that raises ends them all, by name.
    """
    directory = make_model("mixtral", tmp_path / "model")
    draft = make_model("qwen2_window", tmp_path / "draft")
    monkeypatch.setattr("quire.engine.assembly.draft.check_draft", lambda *_: None)
    drafts = {"method": "draft", "model": str(draft), "num_speculative_tokens": 3}
    options = {"dtype": "float32", "kv_cache_memory_bytes": "1MiB", "max_model_len": 64}
    params = SamplingParams(n=2, seed=3, max_tokens=16, ignore_eos=True)
    expected = LLM(directory, **options).generate(PROMPTS, params, use_tqdm=False)
    llm = LLM(
        directory, **options, speculative_config=drafts,
        tensor_parallel_size=4, distributed_timeout_seconds=20.0, warm_up=True,
    )  # fmt: skip
    assert "Each of 4 ranks" in llm.capacity.describe()
    assert "its memory was touched in" in llm.capacity.describe()
    assert len(llm.capacity.limits.kv_groups) == 2
    drafting = Drafting(llm.engine.scheduler, lambda request, sequence: [TO_DRAFT] * 2)
    found = llm.generate(PROMPTS, params, use_tqdm=False)
    assert list(map(tokens, found)) == list(map(tokens, expected))
    assert drafting.num_drafts > 40
    others: Any = llm.engine.capabilities.others
    others.group.tell(b"no order")
    with pytest.raises(RankError, match=r"^rank \d: failed: error\("):
        llm.generate(PROMPTS, params, use_tqdm=False)
    llm.close()
