"""Log-probabilities of prompts are found beside the blocks that hold their keys, and are the same.

The fake model's depend on every key before them, read through the block table.
"""

from __future__ import annotations

from typing import Any

from quire.core.memory import BlockMove, MoveKind, PagedAllocator
from quire.core.protocol import Chunk, Outcome, Request, Step, TokenLogprobs
from quire.core.scheduling import BatchLimits, Scheduler, SequenceGroup
from quire.core.scheduling.scores import PromptScores, ScoredBlocks
from quire.text.params import SamplingParams
from support.fake_model import FULL, FakeExecutor, expected_scores
from support.outcomes import take_in

SIZE = 4
SHARED = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16)  # two blocks and a half


class Life:
    """A scheduler and a fake model, and how many tokens each step computes."""

    def __init__(self, budget: int = 64) -> None:
        self.scheduler = Scheduler(PagedAllocator(32, SIZE), BatchLimits(8, budget))
        self.executor = FakeExecutor(32, SIZE)
        self.told: list[Any] = []

    def add(self, name: str, *prompt: int, num_top: int = 0, **more: Any) -> SequenceGroup:
        params = SamplingParams(max_tokens=0, prompt_logprobs=num_top)
        return self.scheduler.add(Request(name, prompt, params, 0, 0, **more))

    def step(self, aborted: str | None = None) -> int:
        step = self.scheduler.schedule(0.0)
        if aborted is not None:
            self.scheduler.abort(aborted)
        self.told += take_in(self.scheduler, step, self.executor.execute(step))
        return step.num_tokens


def right(*groups: SequenceGroup) -> bool:
    return all(
        group.scores is not None and [*group.scores] == expected_scores(group.request, FULL)
        for group in groups
    )


def test_nothing_is_sampled_and_no_more_than_the_prompt_is_held() -> None:
    life = Life()
    group = life.add("a", *SHARED)
    assert life.step() == len(SHARED)
    assert not life.scheduler.has_work and right(group)
    (end,) = life.told
    assert end.sample is None and end.finish_reason is not None
    assert group.memory.peak_blocks == 3


def test_a_prompt_goes_on_from_the_row_before_what_it_must_be_told_of() -> None:
    life = Life()
    a = life.add("a", *SHARED, 1)
    life.step()
    b, c = life.add("b", *SHARED, 2), life.add("c", *SHARED[:8])
    # Row 7 is that of the first token that no block has; it is there, to be computed again.
    assert life.step() == len(SHARED) + 1 - 7 + 1
    assert (b.memory.cached_tokens, c.memory.cached_tokens) == (7, 7)
    assert right(a, b, c)


def test_equal_beginnings_in_one_step_are_computed_once_even_for_who_leaves() -> None:
    life = Life()
    life.add("a", *SHARED, 1)
    b = life.add("b", *SHARED, 2)
    assert life.step(aborted="a") == len(SHARED) + 1 + len(SHARED) + 1 - SIZE
    assert right(b)
    assert not life.scheduler._scored.awaited, "nothing is waited for"


def test_other_salts_and_other_counts_find_nothing() -> None:
    life = Life()
    life.add("a", *SHARED)
    life.step()
    found = [
        life.add("b", *SHARED, cache_salt="b"),
        life.add("c", *SHARED, num_top=1),
        life.add("d", *SHARED),
    ]
    life.step()
    assert [group.memory.cached_tokens for group in found] == [0, 0, 7]


def test_a_step_that_fails_leaves_nothing_to_be_found() -> None:
    life = Life()
    life.add("a", *SHARED)
    life.executor.roster.follow(life.scheduler.schedule(0.0))
    life.scheduler.abort("a", invalid=True)
    group = life.add("b", *SHARED)
    assert life.step() == len(SHARED) and right(group)
    later = life.add("c", *SHARED)
    life.step()
    assert later.memory.cached_tokens == 7 and right(later)


def entry(value: float) -> TokenLogprobs:
    return TokenLogprobs(value, 1, ())


def test_what_came_of_a_swap_that_failed_is_withdrawn_and_nobody_promises_after_one() -> None:
    names, chunk = [b"a", b"b"], Chunk(5, range(8), 0, None, 8, None)  # type: ignore[arg-type]
    for sound in (True, False):
        scored, scores = ScoredBlocks(SIZE), PromptScores(8, 0, SIZE)
        scored.expect(chunk, scores)
        scored.promise(chunk, scores, names)
        scored.take(chunk, Outcome(prompt_logprobs=[entry(-i) for i in range(7)]), sound=sound)
        assert scored.find(names, 0) == (2 if sound else 0)
        assert [*scores][1:] == ([entry(-i) for i in range(7)] if sound else [None] * 7)
    life = Life()
    group = life.add("a", *SHARED)
    branch, allocator = group.branches[0], life.scheduler.allocator
    life.scheduler.schedule(0.0)
    assert life.scheduler._scored.find(branch.block_hashes, 0) == 2
    assert group.scores is not None
    life.scheduler._scored.withdraw(group.scores)
    swap = Step([BlockMove(MoveKind.SWAP_IN, 0, allocator.table(branch.seq_id).block_ids[0])])
    life.scheduler._chunker.add_chunk(group, branch, 0, len(SHARED), swap)
    assert life.scheduler._scored.find(branch.block_hashes, 0) == 0


def test_what_is_kept_is_bounded_and_the_latest_stays() -> None:
    scored = ScoredBlocks(SIZE, most_bytes=3 * SIZE * 400)
    for number in range(5):
        chunk = Chunk(number, range(4), 0, None, 4, None)  # type: ignore[arg-type]
        scored.promise(chunk, PromptScores(4, 5, SIZE), [bytes([number])])
    assert [scored.find([bytes([number])], 5) for number in range(5)] == [0, 0, 1, 1, 1]


def test_of_a_prompt_the_end_makes_room() -> None:
    """Whether it is longer than what is kept, or one whose beginning others go on from."""
    scored = ScoredBlocks(SIZE, most_bytes=8 * SIZE * 300)

    def promise(prompt: int, blocks: int, step: int) -> list[bytes]:
        names = [bytes([prompt, number]) for number in range(blocks)]
        scores = PromptScores(blocks * SIZE, 0, SIZE)
        for start in range(0, blocks, step):
            chunk = Chunk(prompt, range(step * SIZE), start * SIZE, None, 0, None)  # type: ignore[arg-type]
            scored.promise(chunk, scores, names)
        return names

    long = promise(1, 30, 3)
    assert scored.find(long, 0) == 8
    for other in range(2, 5):
        promise(other, 4, 4)
        scored.reuse(PromptScores(30 * SIZE, 0, SIZE), long[:4], 3 * SIZE)
    assert scored.find(long, 0) == 4
