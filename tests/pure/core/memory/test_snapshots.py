"""Which states are kept, and what they are found for."""

from __future__ import annotations

import pytest

from quire.core.memory import (
    Demand,
    KeptState,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    SnapshotPlaces,
    StateAllocator,
    When,
    hash_blocks,
)
from quire.core.memory.pool import BlockPool
from quire.core.memory.snapshots import Snapshots

SIZE = 4
PLACES = SnapshotPlaces(every=40, block_size=SIZE, decoding=64)


class Talks:
    """Requests one after the other, each in one chunk that leaves snapshots on its way."""

    def __init__(self, slots: int, blocks: int = 500) -> None:
        self.blocks = PagedAllocator(blocks, SIZE)
        self.states = StateAllocator(
            slots,
            SIZE,
            0,
            KeptState(40, 2 * SIZE),
            lambda name: self.blocks.locate(name) is not None,
        )
        self.allocator = LayeredAllocator(SIZE, [self.blocks], self.states)
        self.next_id = 0

    def begin(self, prompt: list[int], answer: int = 0) -> tuple[int, int, int]:
        """Its id, how many tokens were found, and how many have blocks but no state."""
        names = hash_blocks(b"", [*prompt, *range(-0, answer)], SIZE)
        demand = Demand(len(prompt), names[: len(prompt) // SIZE])
        self.allocator.settle()
        fit, seq_id = self.allocator.fit(demand), self.next_id
        cached = self.allocator.admit(seq_id, demand)
        assert cached == fit.cached
        self.next_id = seq_id + 1
        self.grow(seq_id, names, cached, len(prompt))
        places = PLACES.of(len(prompt), cached, cached + fit.stateless)
        for place, idle in PLACES.in_turn(places):
            self.allocator.leave(seq_id, names, place // SIZE, idle=idle)
        for end in range(len(prompt) + 1, len(prompt) + answer + 1):
            self.grow(seq_id, names, end - 1, end)
        return seq_id, cached, fit.stateless

    def grow(self, seq_id: int, names: list[bytes], here: int, end: int) -> None:
        self.allocator.settle()
        assert self.allocator.append({seq_id: end - here}) is not None
        if end // SIZE > here // SIZE:
            self.allocator.commit(seq_id, names, end // SIZE)

    def ask(self, prompt: list[int], answer: int = 0) -> tuple[int, int]:
        seq_id, *found = self.begin(prompt, answer)
        self.allocator.free(seq_id)
        return found[0], found[1]

    def depths(self) -> list[int]:
        """Tokens that the snapshots stand for."""
        snapshots = self.states._snapshots._by_slot
        return sorted(snapshots[slot].depth * SIZE for slot in self.states.device.cached_blocks())

    def parted(self) -> int:
        """Texts that have left a snapshot where others went on."""
        return sum(one.parted for one in self.states._snapshots._by_slot.values())


def text(first: int, length: int) -> list[int]:
    return list(range(first * 1000, first * 1000 + length))


def test_states_are_left_at_the_last_block_where_texts_part_and_every_so_often() -> None:
    assert PLACES.of(100, 0, 4) == [4, 40, 80, 96]
    assert PLACES.of(101, 0, 4) == [4, 40, 80, 100]
    assert PLACES.of(100, 40, 59) == [56, 80, 96]
    assert PLACES.of(100, 80, 80) == [96] and PLACES.of(100, 96, 96) == []
    assert PLACES.of(4, 0, 0) == PLACES.of(1, 0, 0) == [] and PLACES.of(5, 0, 0) == [4]


def test_of_a_prompt_that_begins_like_none_they_are_left_early_too() -> None:
    assert PLACES.of(100, 0, 0) == [4, 8, 20, 40, 80, 96] and PLACES.of(15, 0, 0) == [4, 8, 12]
    tiny = SnapshotPlaces(every=8, block_size=SIZE, decoding=8)
    assert tiny.of(15, 0, 0) == [4, 8, 12], "none is shorter than a block"


def test_they_are_left_where_callers_say_that_a_beginning_comes_again() -> None:
    assert PLACES.of(100, 0, 4, [31, 2**40]) == [4, 28, 40, 80, 96]
    assert PLACES.of(100, 40, 40, [31, 99, 100]) == [80, 96]


def test_who_is_the_first_to_part_finds_half_of_what_is_there() -> None:
    for shared in range(4, 200):
        talks = Talks(slots=30)
        talks.ask([*text(1, shared), *text(2, 20)])
        found, lacking = talks.ask([*text(1, shared), *text(3, 9)])
        assert found >= lacking, shared


def test_early_states_go_before_those_that_texts_go_on_from() -> None:
    talks = Talks(slots=5)  # one is live
    for n in range(1, 5):
        talks.ask(text(n, 39))
    assert talks.depths() == [36] * 4


def test_the_earliest_displace_no_other() -> None:
    assert PLACES.in_turn([4, 8, 28, 40]) == [(28, False), (40, False), (4, True), (8, False)]
    talks = Talks(slots=4)  # one is live
    talks.ask(text(1, 39))
    assert talks.depths() == [8, 20, 36]
    talks = Talks(slots=5)
    talks.ask(text(1, 39))
    assert talks.depths() == [4, 8, 20, 36]


def test_a_prompt_goes_on_from_the_deepest_state_before_its_last_token() -> None:
    talks = Talks(slots=8)
    assert talks.ask(text(1, 30)) == (0, 0)
    assert talks.depths() == [4, 8, 20, 28]
    assert talks.ask(text(1, 30)) == (28, 0)
    assert talks.ask(text(1, 28)) == (20, 4), "a token is left to compute"
    assert talks.ask([*text(1, 29), 5, 6, 7]) == (28, 0)


def test_where_texts_part_a_state_is_left_for_the_next_one() -> None:
    talks = Talks(slots=20)
    tails = [talks.ask([*text(1, 30), *text(n, 10)]) for n in range(2, 9)]
    assert tails == [(0, 0), (20, 8), *[(28, 0)] * 5]


def test_answers_leave_their_last_state_alone() -> None:
    talks = Talks(slots=8)
    prompt = text(1, 10)
    assert talks.ask(prompt, answer=25) == (0, 0)
    assert talks.depths() == [4, 8, 32]
    assert talks.ask([*prompt, *range(25), *text(2, 5)]) == (32, 0)


def test_a_state_is_found_from_the_step_after_the_one_that_computes_it() -> None:
    talks = Talks(slots=4)
    names = hash_blocks(b"", text(1, 8), SIZE)
    demand = Demand(9, names)
    talks.allocator.admit(0, Demand(8, names))
    talks.allocator.append({0: 8})
    talks.allocator.commit(0, names, 2)
    assert talks.allocator.fit(demand).cached == 0
    talks.allocator.settle()
    assert talks.allocator.fit(demand).cached == 8
    assert talks.allocator.admit(1, demand) == 8
    held = [talks.allocator.table(seq_id).kv_groups[1].block_ids for seq_id in (0, 1)]
    assert held[0] == held[1], "shared, until one of them writes"
    moves = talks.allocator.append({1: 1})
    assert moves is not None and [move.kind for move in moves] == [MoveKind.COPY]
    assert moves[0].source == held[0][0] and moves[0].kv_group == 1


def test_a_shallow_state_that_branches_need_outlives_deep_ones() -> None:
    talks = Talks(slots=6)  # one is live
    root = text(1, 24)
    for branch in range(2, 5):
        talks.ask([*root, *text(branch, 6)])
    assert 24 in talks.depths()
    deep = [*root, *text(9, 6)]
    for turn in range(10, 30):  # a long talk, of which each turn leaves states
        deep = [*deep, *text(turn, 20)]
        assert talks.ask(deep)[0] >= max(24, len(deep) - 40)
    assert talks.ask([*root, *text(99, 6)]) == (24, 0)


def test_who_goes_on_from_an_answer_does_not_part_there() -> None:
    talks = Talks(slots=9)
    talks.ask(text(1, 10), answer=29)
    talks.ask([*text(1, 10), *range(29), *text(2, 20)])
    assert talks.depths() == [4, 8, 32, 36, 40, 56]
    assert talks.parted() == 0
    talks.ask([*text(1, 10), *range(29), *text(3, 20)])
    assert talks.parted() == 1, "36 is where two texts have parted"


def test_a_talk_that_goes_on_keeps_its_deepest_beside_texts_that_never_do() -> None:
    talks, talk = Talks(slots=5, blocks=1000), text(1, 24)  # one is live
    for turn in range(2, 20):
        found, _ = talks.ask(talk)
        assert turn < 6 or found >= len(talk) - 24
        talk = [*talk, *text(turn, 14)]
        for other in range(3):
            talks.ask([*text(50, 24), *text(100 + 3 * turn + other, 35)])


def test_what_nobody_has_begun_with_for_long_goes_first() -> None:
    talks = Talks(slots=3)  # one is live
    talks.ask(text(1, 38))
    for _ in range(30):
        talks.ask(text(2, 30))
    talks.ask(text(3, 30))
    assert talks.ask(text(2, 30)) == (28, 0)


def test_the_only_state_of_a_text_outlives_those_that_save_more_beside_others() -> None:
    talks, talk = Talks(slots=4), text(2, 30)  # one is live
    talks.ask(text(1, 9))
    for turn in range(3, 12):
        talk = [*talk, *text(turn, 12)]
        talks.ask(talk)
    assert talks.ask([*text(1, 9), 5]) == (8, 0)


def test_states_of_texts_whose_blocks_are_gone_go_first() -> None:
    talks = Talks(slots=4, blocks=18)
    for n in range(1, 3):
        talks.ask(text(n, 30))  # eight blocks each
    assert talks.depths() == [20, 28, 28]
    talks.ask(text(3, 39))  # takes those of the first
    assert talks.ask(text(2, 30))[0] == 0 or 28 in talks.depths()
    assert talks.states.device.num_free == 4


def test_snapshots_never_cause_a_lack_of_room() -> None:
    talks = Talks(slots=2)
    talks.ask(text(1, 30))
    first, second = (talks.begin(text(n, 30))[0] for n in (2, 3))
    assert talks.depths() == [], "both slots are written"
    assert talks.allocator.fit(Demand(3)).when is When.LATER
    talks.allocator.free(first)
    assert talks.allocator.fit(Demand(3)).when is When.NOW
    assert talks.allocator.fit(Demand(3, headroom=2)).when is When.LATER, "one more will need it"
    talks.allocator.free(second)
    assert talks.allocator.fit(Demand(3, forks=[(1, 3)] * 2)).when is When.NEVER


def test_a_state_cannot_be_cut_back() -> None:
    talks = Talks(slots=2)
    seq_id, *_ = talks.begin(text(1, 10))
    assert not talks.allocator.draft(seq_id, 1), "there is no room for what comes in for drafts"
    talks.allocator.trim(seq_id, 10)
    with pytest.raises(ValueError, match="cannot be cut back"):
        talks.states.trim(seq_id, 9)


def test_drafts_end_where_a_snapshot_is_taken() -> None:
    places = SnapshotPlaces(every=40, block_size=4, decoding=8)
    assert [places.most_drafts(known) for known in (7, 8, 12, 14, 15, 16)] == [0, 7, 3, 1, 0, 7]


def test_what_comes_back_is_worth_what_it_was() -> None:
    """A text has gone on from it that left the others there; then its slot was needed."""
    pool = BlockPool(3)
    snapshots = Snapshots(pool, lambda name: True)
    shared, other = (hash_blocks(b"", [first, *range(15)], 4) for first in (1, 2))
    slots = [pool.take() for _ in range(3)]
    snapshots.text_comes(shared[0])
    snapshots.add(slots[0], shared, 2)
    snapshots.add(slots[1], shared, 4)
    snapshots.found(slots[0])
    pool.invalidate(slots[0])
    snapshots.text_comes(other[0])
    snapshots.add(slots[2], other, 2)
    snapshots.add(slots[0], shared, 2)
    pool.invalidate(slots[1])
    snapshots.text_comes(shared[0])
    snapshots.found(slots[0])
    assert snapshots._by_slot[slots[0]].parted == 1
