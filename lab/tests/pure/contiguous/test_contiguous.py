"""What each contiguous policy reserves, where it moves things, and how every slot is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockTable, Demand, MoveKind, Usage, When
from quire.engine.config import EngineConfig
from quire.models.shape import CacheShape
from quire_lab.contiguous import limits_under
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation

MAX, POW2, ORACLE = Reservation


def start(
    allocator: ContiguousAllocator, seq_id: int, prompt: int, longest: int, width: int = 1
) -> None:
    """Admit a sequence and compute its whole prompt."""
    assert allocator.admit(seq_id, Demand(prompt, width=width, longest=longest)) == 0
    assert allocator.append({seq_id: prompt}) == []


def region(allocator: ContiguousAllocator, seq_id: int) -> tuple[int, int]:
    """First block and number of blocks of a sequence's region."""
    blocks = allocator.table(seq_id).block_ids
    assert blocks == tuple(range(blocks[0], blocks[0] + len(blocks)))
    return blocks[0], len(blocks)


def state(allocator: ContiguousAllocator, seq_id: int) -> tuple[BlockTable, int, Usage]:
    """All there is to see of a sequence."""
    return allocator.table(seq_id), allocator.num_tokens(seq_id), allocator.usage()


def copies(*pairs: tuple[int, int]) -> list[BlockMove]:
    return [BlockMove(MoveKind.COPY, source, target) for source, target in pairs]


# -- what is reserved --------------------------------------------------------------------------


def test_max_reserves_what_the_model_can_take() -> None:
    allocator = ContiguousAllocator(256, 16, MAX, max_model_len=2048)
    start(allocator, 0, prompt=7, longest=31)
    assert region(allocator, 0) == (0, 128)
    assert allocator.usage()._asdict() == {
        "used": 7, "reserved": 24, "internal": 2017, "external": 0, "cached": 0, "free": 2048,
    }  # fmt: skip


def test_oracle_reserves_the_true_length() -> None:
    allocator = ContiguousAllocator(64, 4, ORACLE, max_model_len=2048)
    start(allocator, 0, prompt=7, longest=25)
    assert region(allocator, 0) == (0, 8)  # seven blocks would do, but buddies come in eights
    assert allocator.usage()._asdict() == {
        "used": 7, "reserved": 18, "internal": 7, "external": 0, "cached": 0, "free": 224,
    }  # fmt: skip
    assert allocator.append({0: 18}) == []
    assert allocator.usage()._asdict() == {
        "used": 25, "reserved": 0, "internal": 7, "external": 0, "cached": 0, "free": 224,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("generated", "reserved"), [(0, 1), (1, 1), (2, 2), (3, 4), (16, 16), (25, 32), (33, 64)]
)
def test_pow2_reserves_a_power_of_two_for_the_output(generated: int, reserved: int) -> None:
    # "If the true output length is 25, it reserves 32 positions" (section 6.1). A prompt that
    # fills a region of 128 with exactly that reservation; one token more takes the next region.
    for prompt, blocks in ((128 - reserved, 128), (129 - reserved, 256)):
        allocator = ContiguousAllocator(1024, 1, POW2, max_model_len=2048)
        start(allocator, 0, prompt, longest=1000)
        allocator.append({0: generated})
        assert region(allocator, 0)[1] == blocks


def test_pow2_does_not_know_how_long_a_sequence_will_be_but_usage_does() -> None:
    allocator = ContiguousAllocator(16, 4, POW2, max_model_len=2048)
    start(allocator, 0, prompt=16, longest=18)
    assert region(allocator, 0) == (0, 8)  # 16 and 1 token: five blocks
    assert allocator.usage()[:3] == (16, 2, 14)  # used, reserved, internal
    start(allocator, 1, prompt=3, longest=40)
    assert region(allocator, 1) == (8, 1)
    assert allocator.usage()[:3] == (19, 3, 14)  # of 37 more tokens one lies within the region


def test_pow2_reserves_no_more_than_the_model_can_take() -> None:
    allocator = ContiguousAllocator(64, 4, POW2, max_model_len=32)
    start(allocator, 0, prompt=12, longest=32)
    allocator.append({0: 17})  # 12 + 32 would be 11 blocks
    assert region(allocator, 0)[1] == 8


def test_pow2_reserves_no_more_than_an_even_share_of_the_pool() -> None:
    # 10 + 64 tokens take 32 blocks, which two branches cannot both have; 43 take 16.
    allocator = ContiguousAllocator(40, 4, POW2, max_model_len=2048)
    start(allocator, 0, prompt=10, longest=43, width=2)
    allocator.append({0: 33})
    assert region(allocator, 0)[1] == 16


def test_what_was_generated_before_a_preemption_counts_as_prompt() -> None:
    allocator = ContiguousAllocator(64, 1, POW2, max_model_len=2048)
    # The trunk has 5 tokens now, and a branch to fork from it has 8.
    assert allocator.admit(0, Demand(5, forks=[(3, 8)], width=2, longest=30)) == 0
    assert region(allocator, 0)[1] == 16  # 8 and 1, the same for both
    allocator.append({0: 3})
    allocator.fork(0, 1)
    assert allocator.append({0: 2, 1: 5}) == []


# -- fit ---------------------------------------------------------------------------------------


def test_fit_gives_its_figures() -> None:
    allocator = ContiguousAllocator(12, 4, ORACLE, max_model_len=64)
    demand = Demand(4, longest=16, width=2)
    assert allocator.fit(demand)[:4] == (When.NOW, 8, 12, 12)
    assert allocator.admit(0, demand) == 0
    assert allocator.fit(demand)[:4] == (When.LATER, 8, 4, 12)
    assert allocator.fit(Demand(4, longest=17, width=2))[:4] == (When.NEVER, 16, 4, 12)
    # Twelve blocks are an eight and a four: three fours, but one eight.
    assert allocator.fit(Demand(4, longest=16, width=3)).when is When.LATER
    assert allocator.fit(Demand(4, longest=16, width=4)).when is When.NEVER
    assert allocator.fit(Demand(4, longest=4, width=13)).when is When.NEVER


def test_never_is_about_the_end_not_the_beginning() -> None:
    small, large = Demand(4, longest=5), Demand(4, longest=33)
    for policy, demand in ((MAX, small), (ORACLE, large), (POW2, large)):
        assert ContiguousAllocator(8, 4, policy, 64).fit(demand).when is When.NEVER
    for policy in (ORACLE, POW2):
        assert ContiguousAllocator(8, 4, policy, 64).fit(small).when is When.NOW


def test_enough_free_blocks_in_pieces_too_small_are_external() -> None:
    allocator = ContiguousAllocator(8, 4, ORACLE, max_model_len=32)
    for seq_id in range(4):
        start(allocator, seq_id, prompt=4, longest=8)
    allocator.free(0)
    allocator.free(2)
    demand = Demand(4, longest=16)
    assert allocator.fit(demand)[:4] == (When.LATER, 4, 4, 8)
    assert allocator.usage().external == 0  # nobody has asked yet
    assert allocator.admit(9, demand) is None
    assert allocator.usage()._asdict() == {
        "used": 8, "reserved": 8, "internal": 0, "external": 16, "cached": 0, "free": 0,
    }  # fmt: skip
    start(allocator, 4, prompt=4, longest=8)
    assert (allocator.usage().external, allocator.usage().free) == (0, 8)


def test_an_empty_pool_has_nothing_in_pieces() -> None:
    allocator = ContiguousAllocator(12, 4, ORACLE, max_model_len=32)
    start(allocator, 0, prompt=4, longest=32)
    assert allocator.admit(1, Demand(4, longest=32)) is None
    assert (allocator.usage().external, allocator.usage().free) == (16, 0)
    allocator.free(0)
    assert (allocator.usage().external, allocator.usage().free) == (0, 48)


def test_only_pow2_leaves_headroom_for_those_that_run() -> None:
    demand = Demand(4, longest=16, headroom=1)
    for policy, when in ((MAX, When.NOW), (ORACLE, When.NOW), (POW2, When.LATER)):
        allocator = ContiguousAllocator(4, 4, policy, max_model_len=16)
        if policy is POW2:
            start(allocator, 0, prompt=4, longest=16)
        assert allocator.fit(demand).when is when
    assert allocator.fit(Demand(4, longest=16)).when is When.NOW
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=16, num_host_blocks=4)
    start(allocator, 0, prompt=4, longest=16)
    allocator.swap_out([0])
    assert allocator.swap_in([0], headroom=3) is None
    assert allocator.swap_in([0], headroom=2) == [BlockMove(MoveKind.SWAP_IN, 0, 0)]


# -- growing -----------------------------------------------------------------------------------


def test_a_region_that_is_outgrown_moves_and_the_old_place_is_reused_in_the_same_call() -> None:
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=64)
    start(allocator, 0, prompt=3, longest=8)
    start(allocator, 1, prompt=3, longest=8)
    assert (region(allocator, 0), region(allocator, 1)) == ((0, 1), (1, 1))
    assert allocator.blocks_to_append({0: 2, 1: 2}) == 2
    # Block 0 must have been read before block 1 is written over it.
    assert allocator.append({0: 2, 1: 2}) == copies((0, 2), (1, 0))
    assert (region(allocator, 0), region(allocator, 1)) == ((2, 2), (0, 2))
    assert allocator.num_free_blocks == 0


def test_a_larger_region_may_cover_the_old_one() -> None:
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=64)
    start(allocator, 0, prompt=7, longest=7)
    start(allocator, 1, prompt=7, longest=16)
    allocator.free(0)
    assert region(allocator, 1) == (2, 2)
    assert allocator.append({1: 2}) == copies((2, 0), (3, 1))
    assert region(allocator, 1) == (0, 4)


def test_growing_in_place_moves_nothing() -> None:
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=64)
    start(allocator, 0, prompt=3, longest=16)
    assert allocator.append({0: 2}) == []
    assert region(allocator, 0) == (0, 2)


def test_when_one_of_a_call_cannot_grow_none_does() -> None:
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=64)
    for seq_id in range(3):
        start(allocator, seq_id, prompt=3, longest=16)
    before = [state(allocator, seq_id) for seq_id in range(3)]
    assert allocator.append({0: 1, 1: 2, 2: 2}) is None
    assert before == [state(allocator, seq_id) for seq_id in range(3)]
    assert allocator.append({0: 1}) == []


# -- forks -------------------------------------------------------------------------------------


def test_a_fork_copies_into_a_region_that_admission_has_reserved() -> None:
    allocator = ContiguousAllocator(16, 4, ORACLE, max_model_len=64)
    start(allocator, 0, prompt=9, longest=16, width=3)
    assert allocator.num_free_blocks == 4
    assert allocator.blocks_held([0]) == (12, 0)
    assert allocator.usage()[:3] == (9, 7 + 2 * 16, 0)
    assert allocator.fork(0, 1) == copies((0, 4), (1, 5), (2, 6))
    assert allocator.fork(1, 2) == copies((4, 8), (5, 9), (6, 10))
    assert allocator.usage()[:3] == (27, 21, 0)
    assert allocator.num_free_blocks == 4
    with pytest.raises(ValueError, match="3 branches at one time"):
        allocator.fork(0, 3)


def test_a_dead_branch_leaves_its_region_to_the_next_fork() -> None:
    allocator = ContiguousAllocator(16, 4, ORACLE, max_model_len=64)
    start(allocator, 0, prompt=4, longest=16, width=2)
    allocator.fork(0, 1)
    allocator.free(0)
    assert allocator.num_free_blocks == 8
    assert allocator.usage()[:3] == (4, 12, 16)  # nobody is known to come
    assert allocator.blocks_held([1]) == (8, 0)
    assert allocator.fork(1, 2) == copies((4, 0))
    assert allocator.usage()[:3] == (8, 24, 0)
    allocator.free(1)
    allocator.free(2)
    assert allocator.num_free_blocks == 16


def test_a_family_grows_with_its_longest_branch_so_that_any_can_fork() -> None:
    allocator = ContiguousAllocator(8, 4, POW2, max_model_len=64)
    start(allocator, 0, prompt=3, longest=16, width=2)
    assert region(allocator, 0) == (0, 1)
    assert allocator.blocks_to_append({0: 2}) == 2
    assert allocator.append({0: 2}) == []
    assert allocator.num_free_blocks == 4
    assert allocator.fork(0, 1) == copies((0, 2), (1, 3))
    # A branch moves along although only its sibling grows: 5 to 8 tokens fit, 9 do not.
    assert allocator.append({0: 4}) == copies((0, 4), (1, 5), (2, 0), (3, 1))
    assert (region(allocator, 0), region(allocator, 1)) == ((4, 4), (0, 4))


# -- swapping, charging ------------------------------------------------------------------------


def test_a_swap_moves_only_filled_blocks_and_needs_regions_again() -> None:
    allocator = ContiguousAllocator(8, 4, ORACLE, max_model_len=64, num_host_blocks=4)
    start(allocator, 0, prompt=5, longest=16, width=2)
    allocator.fork(0, 1)
    out = [(0, 0), (1, 1), (4, 2), (5, 3)]
    assert allocator.swap_out([0, 1]) == [BlockMove(MoveKind.SWAP_OUT, *pair) for pair in out]
    assert allocator.table(1).block_ids == (2, 3)
    assert allocator.num_free_blocks == 8
    with pytest.raises(ValueError, match="swapped out"):
        allocator.fork(0, 2)
    start(allocator, 7, prompt=1, longest=1)
    assert allocator.swap_in([0, 1]) is None  # seven blocks are free, but not twice four
    allocator.free(7)
    moves = allocator.swap_in([0, 1])
    assert moves is not None
    assert [move.kind for move in moves] == [MoveKind.SWAP_IN] * 4
    assert {region(allocator, 0), region(allocator, 1)} == {(0, 4), (4, 4)}
    assert allocator.host.num_free == 4


def test_a_family_that_outgrew_its_regions_comes_back_to_larger_ones() -> None:
    allocator = ContiguousAllocator(4, 4, POW2, max_model_len=64, num_host_blocks=4)
    for seq_id in range(4):
        start(allocator, seq_id, prompt=3, longest=16)
    assert allocator.append({0: 1}) == []
    assert allocator.append({0: 1}) is None
    assert allocator.swap_out([0]) == [BlockMove(MoveKind.SWAP_OUT, 0, 0)]
    assert allocator.swap_in([0]) is None
    allocator.free(1)
    assert allocator.swap_in([0]) == [BlockMove(MoveKind.SWAP_IN, 0, 0)]
    assert allocator.append({0: 1}) == []
    assert region(allocator, 0) == (0, 2)


def test_a_swap_that_the_host_has_no_room_for_changes_nothing() -> None:
    allocator = ContiguousAllocator(8, 4, ORACLE, max_model_len=64, num_host_blocks=1)
    start(allocator, 0, prompt=5, longest=16)
    assert allocator.swap_out([0]) is None
    assert allocator.host.num_free == 1
    assert region(allocator, 0) == (0, 4)


def test_a_family_pays_for_all_its_regions_all_the_time_it_has_them() -> None:
    allocator = ContiguousAllocator(8, 4, ORACLE, max_model_len=64, num_host_blocks=8)
    start(allocator, 0, prompt=5, longest=16, width=2)
    allocator.advance(10.0)
    allocator.fork(0, 1)
    allocator.advance(11.0)
    assert allocator.free(0) == 8 * 10 + 4 * 1
    allocator.advance(13.0)
    allocator.swap_out([1])
    allocator.advance(100.0)
    allocator.swap_in([1])
    allocator.advance(101.0)
    assert allocator.free(1) == 4 * 1 + 8 * 2 + 8 * 1


# -- refusals ----------------------------------------------------------------------------------


def test_broken_promises_are_errors_and_change_nothing() -> None:
    allocator = ContiguousAllocator(8, 4, ORACLE, max_model_len=16)
    start(allocator, 0, prompt=5, longest=8)
    before = state(allocator, 0)
    with pytest.raises(ValueError, match="at most 8 tokens; it cannot have 9"):
        allocator.append({0: 4})
    with pytest.raises(ValueError, match="max_model_len tokens, 16; the demand is for 17"):
        allocator.fit(Demand(5, longest=17))
    with pytest.raises(ValueError, match="sequence 0 already has a region"):
        allocator.admit(0, Demand(1))
    with pytest.raises(ValueError, match="sequence 0 already has a region"):
        allocator.fork(0, 0)
    assert state(allocator, 0) == before


@pytest.mark.parametrize("sizes", [(0, 4, 16, 0), (8, 0, 16, 0), (8, 4, 0, 0), (8, 4, 16, -1)])
def test_sizes_must_make_sense(sizes: tuple[int, int, int, int]) -> None:
    blocks, size, longest, host = sizes
    with pytest.raises(ValueError, match="at least"):
        ContiguousAllocator(blocks, size, ORACLE, longest, host)


def test_states_take_no_part_in_regions() -> None:
    cache = CacheShape((None,) * 3, (0, 8, 0), 256, False, (2000, 0, 2000))
    config = EngineConfig(enable_prefix_caching=False, max_model_len=128)
    limits = limits_under("max", config, cache)
    assert len(limits.kv_groups) == 1
    assert isinstance(
        replace(limits, kv_groups=(KVGroup((0, 1, 2), 8),)).allocator(), ContiguousAllocator
    )
