"""How large a pool is, for an engine and for a simulated one."""

from __future__ import annotations

import json

import pytest

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.memory import (
    Demand,
    KeptState,
    LayeredAllocator,
    PagedAllocator,
    PageShare,
    Usage,
    Window,
)
from quire.core.protocol import RecoveryCosts, SchedulingPolicy
from quire.core.scheduling import BatchLimits
from quire.engine.capacity import fill, limits_of, seqs_that_fit
from quire.engine.capacity.pool import pool_blocks
from quire.engine.config import EngineConfig
from quire.engine.scheduling import scheduler_of
from quire.execution.kv_bytes import (
    bytes_of_blocks,
    bytes_of_pool,
    bytes_of_unit,
    least_blocks,
    shares,
)
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.models.shape import CacheShape
from quire_lab.contiguous import limits_of_values

FREE = MemoryBudget(100_000, FREE_MEMORY_SHARE)
# Two layers of eight bytes a token, the second with a window.
CACHE = CacheShape((None, 24), (8, 8), 256, False)


def test_the_default_pool_is_a_share_of_what_is_free() -> None:
    assert pool_blocks(1000, 10**9, None, FREE) == 100 * FREE_MEMORY_SHARE


def test_the_default_pool_is_no_larger_than_a_full_load() -> None:
    assert pool_blocks(1000, 7, None, FREE) == 7


def test_a_requested_pool_is_given_in_whole_blocks() -> None:
    assert pool_blocks(1000, 7, 9999, FREE) == 9


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"100,001.*100,000"):
        pool_blocks(1000, 7, 100_001, FREE)


def test_what_computing_and_requests_need_is_left_to_them() -> None:
    budget = FREE._replace(beside=30_000)
    assert pool_blocks(1000, 7, 70_000, budget) == 70
    with pytest.raises(ConfigError, match=r"70,001.*100,000 .*computing and requests need 30,000"):
        pool_blocks(1000, 7, 70_001, budget)
    assert pool_blocks(1000, 10**9, None, budget) == 50
    assert pool_blocks(1000, 10**9, None, budget._replace(beside=80_000)) == 20
    assert pool_blocks(1000, 10**9, None, budget._replace(beside=180_000)) == 0


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block, 1,000"):
        pool_blocks(1000, 7, 999, FREE)


def filled(
    cache: CacheShape = CACHE, budget: MemoryBudget = FREE, **settings: object
) -> EngineLimits:
    config = EngineConfig.create({"max_num_batched_tokens": 32, **settings})
    return fill(limits_of(config, cache), cache, config, budget)


def test_defaults_are_those_of_the_config() -> None:
    limits, config = filled(), EngineConfig()
    for name in ("block_size", "max_num_seqs", "max_num_sessions", "preemption_mode"):
        assert getattr(limits, name) == getattr(config, name)
    assert limits.enable_prefix_caching
    assert limits.max_sessions_per_client == config.max_num_sessions // 2


APART = CACHE._replace(rows=((3, 5), (4, 4)))
"""The same of layers whose values are not as many times larger than their keys."""


def test_layers_with_a_window_hold_windows_and_the_others_get_the_rest() -> None:
    limits = filled(APART, max_num_seqs=2)
    full, windowed = limits.kv_groups
    assert (full.layers, windowed.layers) == ((0,), (1,))
    assert windowed.window == Window(24, 32) and full.window is None
    assert windowed.num_blocks == 2 * windowed.window.seq_blocks(16) + 1
    assert full.num_blocks > windowed.num_blocks
    assert bytes_of_pool(limits, APART) <= FREE.free * FREE.share
    assert isinstance(limits.allocator(), LayeredAllocator)


def test_kv_groups_share_pages_where_their_layers_keep_tokens_alike() -> None:
    limits = filled(max_num_seqs=20)
    share, pages = PageShare(703, 1, 1, unit_bytes=128), int(FREE.free * FREE.share) // 128
    assert [one.share for one in limits.kv_groups] == [share._replace(pages=pages)] * 2
    assert [one.num_blocks for one in limits.kv_groups] == [pages] * 2
    assert limits.num_blocks == pages and bytes_of_pool(limits, CACHE) == 128 * pages
    allocator = limits.allocator()
    assert isinstance(allocator, LayeredAllocator)
    assert allocator.usage() == Usage(free=pages * 16)
    assert limits_of_values(json.loads(json.dumps(limits.values()))) == limits
    assert filled(max_num_seqs=2).num_blocks == 2 * (16 + 4) + 1, "no more than a full load"
    with pytest.raises(ConfigError, match="there is room for 160 tokens"):
        filled(kv_cache_memory_bytes=128 * 15, max_model_len=256)
    assert filled(kv_cache_memory_bytes=128 * 15).max_model_len == 160
    assert least_blocks(limits.kv_groups) == pages // 2


# Layers of full attention, and with a window, and how large they are; units of a page, and of a
# block of each.
@pytest.mark.parametrize(
    ("layers", "sizes", "pages"),
    [
        ((12, 12), (1, 1), (1, 1, 1)),  # gpt-oss-20b
        ((8, 40), (1, 1), (5, 1, 5)),  # Gemma 3 12B
        ((10, 52), (1, 1), (26, 5, 26)),  # 27B: one unit of 26 is lost to full attention
        ((5, 29), (1, 1), (87, 5, 29)),  # 4B: two of 87
        ((4, 22), (1, 1), (22, 2, 11)),  # 1B
        ((3, 1, 2), (1, 1, 1), (6, 3, 1, 2)),
        ((10, 50), (1, 2), (10, 1, 10)),  # Gemma 4 31B
        ((3, 12), (2, 1), (2, 1, 2)),  # E2B
    ],
)
def test_pages_lose_little_to_blocks_that_do_not_fill_them(
    layers: tuple[int, ...], sizes: tuple[int, ...], pages: tuple[int, ...]
) -> None:
    kv_groups, layer_bytes = list[KVGroup](), list[int]()
    for number, size in zip(layers, sizes, strict=True):
        first = len(layer_bytes)
        kv_groups.append(KVGroup(tuple(range(first, first + number)), 1))
        layer_bytes += [size * 1024] * number
    units, *spans = pages
    kept = CacheShape((), tuple(layer_bytes), 0, False)
    own = [one._replace(unit_bytes=0) for one in shares(kv_groups, kept, 16)]
    assert own == [PageShare(0, units, span) for span in spans]
    assert all(units % span < 0.04 * units for span in spans)


# Of two heads.
@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        (((64, 64), (32, 32), (64, 64)), [2, 3]),  # as of a draft model
        (((96, 64), (48, 32), (96, 64)), [2, 3]),  # values are two thirds of keys
        (((64,), (32, 32), (64, 64)), [1, 3]),  # latents beside heads
        (((96, 64), (64, 64), (64, 64)), []),
        (((96, 64), (80,), (80,)), []),
        (((12, 12), (20, 20), (20, 20)), []),  # no unit is whole rows of both
        (((6, 6), (12, 12), (6, 6)), []),  # of which some begin amid a word
    ],
    ids=str,
)
def test_units_are_of_whole_rows_or_there_is_a_border(
    rows: tuple[tuple[int, ...], ...], spans: list[int]
) -> None:
    kept = CacheShape((), tuple(2 * sum(one) for one in rows), 0, False, rows=rows)
    found = shares([KVGroup((0,), 1), KVGroup((1, 2), 1)], kept, 4)
    assert [one.span for one in found] == spans


def test_a_draft_model_shares_pages_with_its_target() -> None:
    """Gemma 3 4B and 270M, whose windows differ."""
    windows = tuple(None if layer % 6 == 5 else 1024 for layer in range(34))
    drafts = tuple(None if layer % 6 == 5 else 512 for layer in range(18))
    target = CacheShape(windows, (4096,) * 34, 2**17, False, rows=((512, 512),) * 34)
    draft = CacheShape(drafts, (1024,) * 18, 2**15, False, rows=((512, 512),) * 18)
    both, room = target.with_draft(draft), MemoryBudget(2**32, 1.0)
    limits = filled(both, room, max_num_batched_tokens=512)
    assert [one.share and one.share.span for one in limits.kv_groups] == [23, 15, 116]
    assert bytes_of_unit(limits, both) == 1024 * 16
    apart = filled(
        both._replace(rows=((512, 256), *both.rows[1:])), room, max_num_batched_tokens=512
    )
    assert (seqs_that_fit(apart, 2000), seqs_that_fit(limits, 2000)) == (7, 23)


def test_a_draft_model_with_states_has_them_in_its_targets_slots() -> None:
    """Qwen3.5 27B and 0.8B, whose own states keep nothing of drafts."""

    def shape(layers: int, token: int, state: int, draft: int) -> CacheShape:
        attends = [layer % 4 == 3 for layer in range(layers)]

        def each(attending: int, recurrent: int) -> tuple[int, ...]:
            return tuple(attending if one else recurrent for one in attends)

        rows = tuple(((512, 512) if one else ()) for one in attends)
        kept = each(token, 0), 2**18, False, each(0, state), each(0, draft), (), rows
        return CacheShape((None,) * layers, *kept)

    large, small = shape(64, 4096, 3_268_608, 65_920), shape(24, 2048, 1_122_304, 32_896)
    both, room = large.with_draft(small), MemoryBudget(2**34, 1.0)
    speculation = {"method": "draft", "model": "a model", "num_speculative_tokens": 16}
    options = {"speculative_config": speculation, "max_model_len": 8192, "max_num_seqs": 64}
    limits = filled(both._replace(max_positions=8192), room, **options)
    slot = 48 * (3_268_608 + 16 * 65_920) + 18 * 1_122_304
    assert bytes_of_blocks(limits, both) == [16 * (16 * 4096 + 6 * 2048), slot]
    assert [one.share and one.share.span for one in limits.kv_groups] == [1, 183]
    assert seqs_that_fit(limits, 2000) == 44
    with pytest.raises(ConfigError, match="its layers keep a state, and those of the model"):
        large._replace(state_bytes=(), draft_bytes=()).with_draft(small)


# Gemma 3 27B beside 54.9 GB of weights, and Gemma 4 31B beside 62.
@pytest.mark.parametrize(
    ("windowed", "full", "weights", "requests"),
    [(8192, 8192, 54.9e9, (21, 35)), (16384, 8192, 62e9, (4, 14))],
)
def test_gemma_on_one_card_runs_as_many_as_all_of_its_memory_holds(
    windowed: int, full: int, weights: float, requests: tuple[int, int]
) -> None:
    """On 80 GiB: requests of 2,000 tokens."""
    layers = 62 if full == windowed else 60
    windows = tuple(None if layer % 6 == 5 else 1024 for layer in range(layers))
    layer_bytes = tuple(windowed if window else full for window in windows)
    cache = CacheShape(windows, layer_bytes, 131_072, False)
    budget = MemoryBudget(int(0.9 * 80 * 2**30 - weights), 1.0)
    border = cache._replace(rows=((3, 5), *[(4, 4)] * (layers - 1)))
    apart, together = (filled(one, budget, max_num_batched_tokens=512) for one in (border, cache))
    assert (seqs_that_fit(apart, 2000), seqs_that_fit(together, 2000)) == requests
    allocator = together.allocator()
    for seq_id in range(requests[1]):
        assert allocator.admit(seq_id, Demand(1999)) == 0
        for tokens in (512, 512, 512, 463, 1):
            assert allocator.append({seq_id: tokens}) == []
    usage = allocator.usage()
    assert usage.external < 0.02 * usage.capacity and usage.free < 0.09 * usage.capacity


def test_a_window_that_no_text_outgrows_is_none() -> None:
    limits = filled(CACHE._replace(max_positions=24))
    (kv_group,) = limits.kv_groups
    assert kv_group.layers == (0, 1) and kv_group.window is None
    assert isinstance(limits.allocator(), PagedAllocator)


def test_a_window_that_was_asked_for_is_in_every_layer() -> None:
    limits = filled(CACHE._replace(windows=(None, None)), window=32, attention_sinks=4)
    (kv_group,) = limits.kv_groups
    assert kv_group.window == Window(32, 32, 4) and limits.max_model_len is None


def test_the_longest_text_is_what_the_pool_holds_unless_asked_for() -> None:
    plain = CACHE._replace(windows=(None, None))
    small = MemoryBudget(10 * 16 * 16, 1.0)
    assert filled(plain, small).max_model_len == 160
    with pytest.raises(ConfigError, match="there is room for 160 tokens"):
        filled(plain, small, max_model_len=256)


def test_swap_space_is_divided_like_the_pool() -> None:
    limits = filled(swap_space=1e-5)  # 10,737 bytes
    assert [kv_group.num_host_blocks for kv_group in limits.kv_groups] == [42, 41]
    with pytest.raises(ConfigError, match="swap_space must hold at least one block, 256 bytes"):
        filled(swap_space=1e-7)


@pytest.mark.parametrize(
    ("cache", "settings", "message"),
    [
        (CACHE._replace(depends_on_prompt_length=True), {}, "rotary scaling"),
    ],
)
def test_prefix_caching_is_on_where_it_can_be(
    cache: CacheShape, settings: dict[str, object], message: str
) -> None:
    assert not filled(cache, **settings).enable_prefix_caching
    with pytest.raises(ConfigError, match=message):
        filled(cache, enable_prefix_caching=True, **settings)


def test_a_scheduler_is_what_the_limits_say() -> None:
    limits = filled(
        scheduling_policy="fair", max_num_seqs=3, max_queue_time=2.0, enable_prefix_caching=False
    )
    scheduler = scheduler_of(limits, RecoveryCosts())
    assert scheduler.batch == BatchLimits(3, 32)
    assert scheduler.queue.policy is SchedulingPolicy.FAIR
    assert scheduler.max_queue_time == 2.0 and scheduler.prefix_cache is None
    assert scheduler.allocator.usage().capacity == limits.num_blocks * limits.block_size
    assert limits.with_blocks(5, 2).kv_groups == (
        KVGroup((0,), 5, 2),
        KVGroup((1,), 5, 2, Window(24, 32)),
    )


# A layer of eight bytes a token, whose values are larger than its keys, between two that keep a
# state of 2,000.
HYBRID = CacheShape(
    (None,) * 3, (0, 8, 0), 256, False, (2000, 0, 2000), (100, 0, 100), rows=((), (3, 5), ())
)


def test_states_have_a_slot_for_each_sequence_that_runs_and_a_tenth_of_the_pool_more() -> None:
    limits = filled(HYBRID, max_num_seqs=5)
    paged, states = limits.kv_groups
    assert (paged.layers, states.layers) == ((1,), (0, 2)) and limits.states == states
    assert states.state == KeptState(every=512, decoding=64) and states.kept == states.state
    pool = bytes_of_pool(limits, HYBRID)
    assert states.num_blocks == 5 + int(pool * 0.1) // 4000
    assert paged.num_blocks * 16 * 8 + states.num_blocks * 4000 == pool <= FREE.free * FREE.share
    assert limits_of_values(json.loads(json.dumps(limits.values()))) == limits
    assert isinstance(limits.allocator(), LayeredAllocator)
    usage = limits.allocator().usage()
    assert usage.capacity == usage.free == limits.num_blocks * 16
    swapping = filled(HYBRID, max_num_seqs=5, swap_space=1e-4)  # 107,374 bytes
    taken = [a * b.num_host_blocks for a, b in zip((128, 4000), swapping.kv_groups, strict=True)]
    assert min(taken) >= 4000 and sum(taken) <= 107_374


def test_in_a_small_pool_fewer_sequences_have_states_and_the_longest_text_has_room() -> None:
    limits = filled(HYBRID, kv_cache_memory_bytes=41_000)
    _, states = limits.kv_groups
    assert states.num_blocks == 6 and limits.max_model_len == 256  # half, and a tenth
    asked = filled(HYBRID._replace(max_positions=3000), kv_cache_memory_bytes=41_000,
                   max_model_len=3000)  # fmt: skip
    assert asked.kv_groups[1].num_blocks == 4 and asked.max_model_len == 3000
    longest = filled(HYBRID._replace(max_positions=9999), kv_cache_memory_bytes=41_000)
    assert longest.kv_groups[1].num_blocks == 6 and longest.max_model_len == 16 * (
        (41_000 - 24_000) // 128
    )
    with pytest.raises(ConfigError, match="room for 0 tokens"):
        filled(HYBRID, kv_cache_memory_bytes=2000)


def test_what_comes_in_for_drafts_is_kept_with_states() -> None:
    limits = filled(HYBRID, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert limits.kv_groups[1].state == KeptState(every=512, decoding=64, drafts=3)
    assert bytes_of_blocks(limits, HYBRID) == [128, 4600]


def test_a_model_of_states_alone_has_slots_alone() -> None:
    limits = filled(CacheShape((None,), (0,), 256, False, (1000,), (10,)))
    (states,) = limits.kv_groups
    assert states.num_blocks == int(FREE.free * FREE.share) // 1000 and limits.max_model_len == 256


@pytest.mark.parametrize(
    "settings",
    [{"window": 32}, {"attention_sinks": 4, "window": 32}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_states_cannot_do_is_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^window: 2 of this model's 3 layers keep a state"):
        filled(HYBRID, **settings)


# A layer of 4 KiB a token between two that keep a state: a slot is a little less than five blocks.
SHARING = CacheShape(
    (None,) * 3,
    (0, 4096, 0),
    4000,
    False,
    (161_000, 0, 161_000),
    (0, 0, 0),
    rows=((), (512, 512), ()),
)
ROOM = MemoryBudget(2**30, FREE_MEMORY_SHARE)


def test_states_share_pages_with_blocks_and_the_border_is_where_it_is_needed() -> None:
    limits = filled(
        SHARING, budget=ROOM, kv_cache_memory_bytes=2**25, max_num_seqs=500, max_model_len=4000
    )
    paged, states = limits.kv_groups
    assert paged.share is not None and states.share is not None
    pages, units, *_ = states.share
    assert (units, paged.share.span, states.share.span) == (5, 1, 5)
    assert pages == 2**25 // (5 * 2**16) and bytes_of_pool(limits, SHARING) == pages * 5 * 2**16
    assert states.share.lost == (5 * 2**16 - 322_000) * 16 // 2**16
    assert limits_of_values(json.loads(json.dumps(limits.values()))) == limits
    many, few = limits.allocator(), limits.allocator()
    number = 0
    while many.admit(number, Demand(16)) is not None:
        number += 1
    assert number == 85 == seqs_that_fit(limits, 16)  # a border drawn for either fails the other
    assert number + -(-number // 5) == pages
    usage = many.usage()
    assert usage.capacity == limits.num_blocks * 16 and usage.external == number
    assert few.admit(0, Demand(8000)) == 0, "all but one page"
    with pytest.raises(ConfigError, match="there is room for 8080 tokens"):
        filled(
            SHARING._replace(max_positions=8100),
            budget=ROOM,
            kv_cache_memory_bytes=2**25,
            max_model_len=8100,
        )


def scaled(row: int, scales: int) -> CacheShape:
    """SHARING with so many bytes of scales a token."""
    numbers = scales // 4 * row
    return SHARING._replace(
        token_bytes=(0, numbers + scales, 0), scale_bytes=(0, scales, 0), rows=((), (row, row), ())
    )


@pytest.mark.parametrize(
    ("cache", "spans"),
    [
        (SHARING._replace(rows=((), (416, 608), ())), None),  # keys and values of several sizes
        (scaled(8, 1024), None),  # a third of slots is lost
        (scaled(508, 32), (1, 5)),
        (SHARING._replace(state_bytes=(7000, 0, 7000)), (32, 7)),  # slots are less than blocks
        (SHARING._replace(state_bytes=(100, 0, 100)), None),
    ],
)
def test_where_more_than_a_little_would_be_lost_states_have_a_border(
    cache: CacheShape, spans: tuple[int, ...] | None
) -> None:
    limits = filled(cache, budget=ROOM, kv_cache_memory_bytes=2**25)
    shares = [one.share for one in limits.kv_groups if one.share is not None]
    assert (tuple(one.span for one in shares) or None) == spans
    if spans is not None:
        total, lost = shares[0].units * bytes_of_unit(limits, cache), []
        for share, size in zip(shares, bytes_of_blocks(limits, cache), strict=True):
            lost.append(1 - share.per_page * size / total)
        assert max(lost) < 0.04 and min(lost) >= 0


def test_swap_space_is_of_blocks_and_states() -> None:
    limits = filled(
        SHARING, budget=ROOM, kv_cache_memory_bytes=2**25, max_num_seqs=3, swap_space=2**24 / 2**30
    )
    paged, states = limits.kv_groups
    assert states.num_host_blocks == 3
    assert 0 <= 2**24 - paged.num_host_blocks * 2**16 - 3 * 322_000 < 2**16
