"""Drafts: planned in what is left, confirmed as far as they are right, and gone without a trace."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.memory import PagedAllocator
from quire.core.protocol import Request, SchedulingPolicy, Step
from quire.core.scheduling import SequenceGroup
from quire.text.params import SamplingParams
from support.invariants import check_allocator
from support.outcomes import answer, take_in
from support.schedulers import make_scheduler

RIGHT, WRONG = 7, 8


def request(name: str, prompt: int = 4, max_tokens: int = 20, **params: Any) -> Request:
    tokens = tuple(range(ord(name[0]), ord(name[0]) + prompt))
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    return Request(name, tokens, sampling, max_tokens, seed=0, client=name[0])


class Drafted:
    """A scheduler whose model only ever says 7."""

    def __init__(self, blocks: int = 64, size: int = 4, **limits: Any) -> None:
        self.allocator = PagedAllocator(blocks, size)
        settings = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **limits}
        self.scheduler = make_scheduler(self.allocator, **settings)
        self.now = 0.0

    def add(self, request: Request) -> SequenceGroup:
        return self.scheduler.add(request)

    def step(self, drafts: dict[str, list[int]] | None = None, is_over: Any = None) -> Step:
        for name, tokens in (drafts or {}).items():
            group = self.scheduler.group(name)
            assert group is not None
            for branch in group.branches:
                self.scheduler.propose(branch.seq_id, tokens)
        step = self.scheduler.schedule(self.now)
        self.now += 1.0
        check_allocator(self.allocator)
        take_in(self.scheduler, step, answer(step), self.now, is_over or (lambda one: False))
        check_allocator(self.allocator)
        return step


def output(group: SequenceGroup) -> list[int]:
    branch = group.branches[0]
    return list(branch.token_ids[branch.num_prompt_tokens :])


@pytest.mark.parametrize("right", range(5))
def test_the_right_ones_are_confirmed_and_one_token_more(right: int) -> None:
    run = Drafted()
    group = run.add(request("a"))
    run.step()
    step = run.step({"a": [RIGHT] * right + [WRONG] * (4 - right)})
    assert step.chunks[0].readout is not None and step.chunks[0].readout.rows == 5
    assert list(step.chunks[0].drafts) == [RIGHT] * right + [WRONG] * (4 - right)
    assert output(group) == [RIGHT] * (2 + right)
    branch = group.branches[0]
    assert branch.num_computed == run.allocator.num_tokens(branch.seq_id) == 5 + right
    assert group.memory.blocks == len(run.allocator.table(branch.seq_id).block_ids)


def test_each_branch_has_its_own() -> None:
    run = Drafted()
    group = run.add(request("a", n=3))
    run.step()
    first, second, _ = group.branches
    run.scheduler.propose(first.seq_id, [RIGHT] * 2)
    run.scheduler.propose(second.seq_id, [WRONG] * 3)
    step = run.step()
    assert [len(chunk.drafts) for chunk in step.chunks] == [2, 3, 0]
    assert [branch.num_output_tokens for branch in group.branches] == [4, 2, 2]


def test_they_end_where_the_text_does() -> None:
    run = Drafted()
    group = run.add(request("a", max_tokens=4))
    run.step()
    step = run.step({"a": [RIGHT] * 9})
    assert len(step.chunks[0].drafts) == 2, "as many as confirm all that is left"
    assert run.scheduler.group("a") is None
    assert group.memory.peak_blocks == 2
    assert run.allocator.usage().cached + run.allocator.usage().free == 64 * 4


def test_what_is_confirmed_after_a_stop_counts_for_nothing() -> None:
    run = Drafted()
    told = []

    def third(progress: Any) -> bool:
        told.append(progress.sample.token_id)
        return len(told) == 3

    run.add(request("a"))
    run.step(is_over=third)
    run.step({"a": [RIGHT] * 6}, is_over=third)
    assert told == [RIGHT] * 3
    assert run.scheduler.group("a") is None


def test_they_take_what_the_budget_has_left() -> None:
    run = Drafted(max_num_batched_tokens=8)
    run.add(request("a"))
    run.add(request("b"))
    run.step()
    run.add(request("c", prompt=3))
    step = run.step({"a": [RIGHT] * 6, "b": [RIGHT] * 6})
    assert [len(chunk.token_ids) for chunk in step.chunks] == [4, 1, 3], "newcomers come first"


def test_nobody_gives_way_to_them() -> None:
    run = Drafted(blocks=5)
    run.add(request("a", prompt=7, max_tokens=8))
    run.add(request("b", prompt=6, max_tokens=6))
    run.step()
    assert run.allocator.num_free_blocks == 1
    step = run.step({"a": [RIGHT] * 6, "b": [RIGHT]})
    assert not any(decision.what.preempts for decision in step.decisions)
    assert [len(chunk.drafts) for chunk in step.chunks] == [0, 1], "two blocks are not free"


def test_a_right_one_is_found_by_others() -> None:
    run = Drafted(size=2)
    run.add(request("a", prompt=2))
    run.step()
    run.step()
    run.step({"a": [RIGHT] * 4})
    prompt = request("a", prompt=2).prompt_token_ids
    right = Request("r", (*prompt, *[RIGHT] * 6, 1), SamplingParams(), 1, seed=0)
    group = run.add(right)
    run.step()
    assert group.memory.cached_tokens == 8


def test_what_nobody_may_find_is_not_found() -> None:
    run = Drafted(size=2)
    run.add(request("a", prompt=2))
    run.step()
    run.step({"a": [WRONG] * 4})
    prompt = request("a", prompt=2).prompt_token_ids
    group = run.add(
        Request("w", (*prompt, RIGHT, WRONG, WRONG, WRONG, 1), SamplingParams(), 1, seed=0)
    )
    run.step()
    assert group.memory.cached_tokens == 2, "the prompt's own block"


def test_clients_are_charged_for_what_is_confirmed() -> None:
    served = []
    for drafts in ([], [WRONG] * 4, [RIGHT] * 4):
        run = Drafted(policy=SchedulingPolicy.FAIR, max_num_seqs=1)
        run.add(request("a"))
        run.add(request("b"))  # who waits is compared with
        run.step()
        accounts = run.scheduler.queue.accounts
        assert accounts is not None
        before = accounts._accounts["a"].served
        run.step({"a": drafts})
        after = accounts._accounts["a"].served
        served.append(after - before)
    assert served == [1, 1, 5]


def test_a_step_is_not_planned_ahead_of_what_verifies() -> None:
    run = Drafted()
    group = run.add(request("a"))
    run.step()
    run.scheduler.propose(group.branches[0].seq_id, [RIGHT])
    step = run.scheduler.schedule(1.0)
    assert run.scheduler.schedule_ahead(step, 1.0) is None
    take_in(run.scheduler, step, answer(step), 2.0)
    step = run.scheduler.schedule(2.0)
    assert not step.chunks[0].drafts, "they were for one step"
    assert run.scheduler.schedule_ahead(step, 2.0) is not None
