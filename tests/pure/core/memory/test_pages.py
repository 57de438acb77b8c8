"""KV groups on pages that they share: borders move, and nobody writes where another reads."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.core.errors import ContextLengthError
from quire.core.memory import (
    BlockMove,
    Demand,
    Fit,
    KeptState,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    SharedPages,
    SharedPool,
    StateAllocator,
    Usage,
    When,
    Window,
    hash_blocks,
)
from quire.core.protocol import (
    Decision,
    Outcome,
    PreemptionMode,
    Request,
    Sample,
    StepResult,
    Verdict,
)
from quire.core.scheduling.admission import fitted
from quire.text.params import SamplingParams
from support.invariants import check_pages, paged, pages_held
from support.schedulers import make_scheduler
from support.tables import visible

WHYS = "not enough free pages", "could not grow", "not enough free pages to swap in"
SIZE = 2
STEP = 8  # tokens


def make_allocator(
    pages: int,
    units: int,
    groups: list[tuple[int, Window | None]],
    *,
    size: int = SIZE,
    host: int = 0,
    state: int = 0,
    lost: int = 0,
) -> LayeredAllocator:
    """groups: units of a block, and window, of each. state: units of a slot, of which so much holds
    nothing; 0: there are none.
    """
    shared = SharedPages(pages, units)
    kv_groups = []
    for span, window in groups:
        pool = SharedPool(shared, span)
        kv_groups.append(PagedAllocator(pool.num_blocks, size, host, window, pool))
    states = None
    if state:
        slots, kept = SharedPool(shared, state, lost), KeptState(4 * size, 2 * size)
        alive = lambda name: kv_groups[0].locate(name) is not None  # noqa: E731
        states = StateAllocator(slots.num_blocks, size, host, kept, alive, slots)
    return LayeredAllocator(size, kv_groups, states, shared)


def has_room(
    allocator: LayeredAllocator, taken: list[int], revived: list[set[int]], count: int, units: int
) -> bool:
    """By laying the blocks out: what is revived where it is, the others where they fit first."""
    held = pages_held(allocator, units)
    for own, blocks in zip(held, revived, strict=True):
        own.update(block // units for block in blocks)
    for own, number, one in zip(held, taken, allocator.kv_groups, strict=True):
        assert isinstance(one.device, SharedPool)
        per_page = one.device.part.per_page
        spare = sum(per_page - blocks for blocks in own.values())
        for page in range(count, count + max(0, -(-(number - spare) // per_page))):
            own[page] = 1  # a new one
    return sum(len(own) for own in held) <= count


class PagesMachine(RuleBasedStateMachine):
    """Units hold (KV group, history) values; each KV group must always read back its own."""

    @initialize(data=st.data(), pages=st.integers(2, 9), host=st.integers(0, 8))
    def build(self, data: st.DataObject, pages: int, host: int) -> None:
        spans = data.draw(st.sampled_from([[1, 1], [1, 2], [2, 5], [5, 26], [1, 3, 4], [3, 3, 1]]))
        state = data.draw(st.sampled_from([0, 1, 4, 26]))
        biggest = max(*spans, state)
        self.units = biggest * data.draw(st.integers(1, 2)) + data.draw(st.integers(0, 1))
        windows = [None, *(Window(data.draw(st.integers(1, 7)), STEP) for _ in spans[1:])]
        self.spans, self.windows, self.pages = spans, windows, pages
        self.allocator = make_allocator(
            pages,
            self.units,
            [*zip(spans, windows, strict=True)],
            host=host,
            state=state,
            lost=data.draw(st.integers(0, 1)),
        )
        self.states = self.allocator.kv_groups[-1] if state else None
        self.spans = [*spans, state] if state else spans
        self.device: dict[tuple[int, int], Any] = {}
        self.host: dict[tuple[int, int, int], Any] = {}
        self.texts: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.swapped: set[int] = set()
        self.next_id = 0

    # -- memory ----------------------------------------------------------------------------

    def replay(self, moves: list[BlockMove]) -> None:
        for move in moves:
            group, span = move.kv_group, self.spans[move.kv_group]
            places = [(unit, i) for unit in range(span) for i in range(SIZE)]
            if move.kind is MoveKind.SWAP_IN:
                read = [self.host.get((group, move.source * span + u, i)) for u, i in places]
            else:
                read = [self.device.get((move.source + u, i)) for u, i in places]
            for (unit, i), value in zip(places, read, strict=True):
                if move.kind is MoveKind.SWAP_OUT:
                    self.host[group, move.target * span + unit, i] = value
                else:
                    self.device[move.target + unit, i] = value

    def write(self, seq_id: int, count: int) -> None:
        start = self.computed[seq_id]
        for group, table in enumerate(self.allocator.table(seq_id).kv_groups):
            if table.keeps_state:
                (slot,) = table.block_ids
                places = [
                    (u, i) for u in range(slot, slot + self.spans[group]) for i in range(SIZE)
                ]
                text = tuple(self.texts[seq_id])
                before = self.device.get((slot, 0), (group, ()))
                assert not start or before == (group, text[:start]), "goes on from its own state"
                self.device.update(dict.fromkeys(places, (group, text[: start + count])))
                continue
            for p in range(start, start + count):
                block, offset = divmod(table.slot(p), SIZE)
                for unit in range(block, block + self.spans[group]):
                    self.device[unit, offset] = group, tuple(self.texts[seq_id][: p + 1])
        self.computed[seq_id] = start + count

    @invariant()
    def every_kv_group_reads_its_own(self) -> None:
        for seq_id in getattr(self, "texts", ()):
            for group, table in enumerate(self.allocator.table(seq_id).kv_groups):
                if table.keeps_state:
                    self.reads_its_state(seq_id, group, *table.block_ids)
                    continue
                window, span = self.windows[group], self.spans[group]
                tokens = None if window is None else window.tokens
                for p in [*visible(self.computed[seq_id], tokens, 0)][:-1]:
                    block, offset = divmod(table.slot(p), SIZE)
                    wanted = group, tuple(self.texts[seq_id][: p + 1])
                    for unit in range(span):
                        if seq_id in self.swapped:
                            found = self.host[group, block * span + unit, offset]
                        else:
                            found = self.device[block + unit, offset]
                        assert found == wanted

    def reads_its_state(self, seq_id: int, group: int, slot: int) -> None:
        wanted = group, tuple(self.texts[seq_id][: self.computed[seq_id]])
        for unit, i in itertools.product(range(self.spans[group]), range(SIZE)):
            if not self.computed[seq_id]:
                continue
            if seq_id in self.swapped:
                assert self.host[group, slot * self.spans[group] + unit, i] == wanted
            else:
                assert self.device[slot + unit, i] == wanted

    @invariant()
    def snapshots_are_of_the_texts_that_they_are_found_by(self) -> None:
        states = getattr(self, "states", None)
        if states is None:
            return
        for name, slot in states.device._block_of.items():
            group, text = self.device[slot, 0]
            assert group == len(self.spans) - 1 and hash_blocks(b"", text, SIZE)[-1] == name

    @invariant()
    def counts_are_exact(self) -> None:
        if hasattr(self, "allocator"):
            check_pages(self.allocator)

    # -- verbs -----------------------------------------------------------------------------

    def hashes(self, tokens: list[int]) -> list[bytes]:
        return hash_blocks(b"", tokens, SIZE)

    def pick(self, data: st.DataObject, *, swapped: bool = False) -> int | None:
        ids = [i for i in self.texts if (i in self.swapped) == swapped]
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule(root=st.integers(0, 3), known=st.integers(0, 12), new=st.integers(1, 6))
    def ask(self, root: int, known: int, new: int) -> None:
        self.admit([root] * known + [10 + self.next_id] * new, 0)

    @rule(data=st.data(), root=st.integers(0, 3), known=st.integers(0, 12), new=st.integers(1, 6))
    def ask_instead(self, data: st.DataObject, root: int, known: int, new: int) -> None:
        seq_id = self.pick(data)
        if seq_id is not None:
            self.leave(seq_id, invalid=False)
        self.admit([root] * known + [10 + self.next_id] * new, data.draw(st.integers(0, 2)))

    def admit(self, tokens: list[int], headroom: int) -> None:
        length = len(tokens)
        demand = Demand(length, self.hashes(tokens), headroom=headroom)
        fit = self.allocator.fit(demand)
        assert self.allocator.fit(demand) == fit, "to look changes nothing"
        idle = not any(map(len, pages_held(self.allocator, self.units)))
        cached = self.allocator.admit(self.next_id, demand)
        assert (cached is not None) == (fit.when is When.NOW)
        if idle and not demand.headroom:
            assert fit.when is not When.LATER, "nobody is there to wait for"
        if cached is None:
            return
        assert cached == fit.cached < length
        self.texts[self.next_id], self.computed[self.next_id] = tokens, cached
        self.next_id += 1
        while (left := length - self.computed[self.next_id - 1]) > 0:
            assert self.grow({self.next_id - 1: min(left, STEP)}), "admission left room"

    def grow(self, wants: dict[int, int]) -> bool:
        groups = self.allocator.kv_groups
        for one in groups:
            if isinstance(one, PagedAllocator):
                one.drop(wants)
        taken = [one.blocks_to_append(wants) for one in groups]
        room = has_room(self.allocator, taken, [set()] * len(taken), self.pages, self.units)
        moves = self.allocator.append(wants)
        assert (moves is not None) == room
        if moves is None:
            return False
        self.replay(moves)
        for i, count in wants.items():
            while len(self.texts[i]) < self.computed[i] + count:
                self.texts[i].append(i % 2)
            self.write(i, count)
            if i % 8:  # most are found again
                self.publish(i)
        return True

    def publish(self, seq_id: int) -> None:
        hashes = self.hashes(self.texts[seq_id][: self.computed[seq_id]])
        self.allocator.commit(seq_id, hashes, len(hashes))
        self.allocator.settle()

    @rule(data=st.data(), drafts=st.integers(0, 5))
    def append(self, data: st.DataObject, drafts: int) -> None:
        ids = [i for i in self.texts if i not in self.swapped]
        if not ids:
            return
        chosen = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
        chosen = chosen[:4]  # of at most as many tokens as a step has
        if self.grow({i: data.draw(st.integers(1, 2)) for i in chosen}) and drafts:
            seq_id, groups = chosen[0], paged(self.allocator)
            before = self.computed[seq_id]
            taken = [one.blocks_to_append({seq_id: drafts}) for one in groups]
            held = taken + [0] * (self.states is not None)
            room = has_room(self.allocator, held, [set()] * len(held), self.pages, self.units)
            room = room and self.states is None  # which has no room for what comes in for drafts
            assert self.allocator.draft(seq_id, drafts) == room
            if room:
                self.texts[seq_id] = self.texts[seq_id][:before] + [7] * drafts
                self.write(seq_id, drafts)
                keep = data.draw(st.integers(before, before + drafts))
                if keep >= max(one.tables[seq_id].promised for one in groups):
                    self.allocator.trim(seq_id, keep)
                    del self.texts[seq_id][keep:]
                    self.computed[seq_id] = keep

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data)
        if parent is not None:
            assert self.allocator.fork(parent, self.next_id) == []
            self.texts[self.next_id] = self.texts[parent][: self.computed[parent]]
            self.computed[self.next_id] = self.computed[parent]
            self.next_id += 1

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        seq_id = self.pick(data)
        if seq_id is not None:
            self.publish(seq_id)
            if data.draw(st.booleans()):
                self.allocator.keep(seq_id, self.computed[seq_id], 3.0)

    @rule(seconds=st.integers(0, 4))
    def wait(self, seconds: int) -> None:
        self.now = getattr(self, "now", 0.0) + seconds
        self.allocator.advance(self.now)

    @rule(data=st.data(), swapped=st.booleans(), invalid=st.booleans())
    def free(self, data: st.DataObject, swapped: bool, invalid: bool) -> None:
        seq_id = self.pick(data, swapped=swapped)
        if seq_id is not None:
            self.leave(seq_id, invalid=invalid)

    def leave(self, seq_id: int, *, invalid: bool) -> None:
        self.allocator.free(seq_id, invalid=invalid)
        del self.texts[seq_id], self.computed[seq_id]
        self.swapped.discard(seq_id)

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        back = data.draw(st.booleans())
        seq_id = self.pick(data, swapped=back)
        if seq_id is None:
            return
        idle = not any(map(len, pages_held(self.allocator, self.units)))
        if back:
            needed, free = (
                self.allocator.blocks_to_swap_in([seq_id]),
                self.allocator.num_free_blocks,
            )
            moves = self.allocator.swap_in([seq_id])
            assert idle or (moves is not None) == (needed <= free), "the figures tell why"
        else:
            moves = self.allocator.swap_out([seq_id])
        assert moves is not None or not (back and idle), "nobody is there to wait for"
        if moves is not None:
            self.replay(moves)
            (self.swapped.remove if back else self.swapped.add)(seq_id)

    @precondition(lambda self: self.next_id % 5 == 4)
    @rule()
    def clear(self) -> None:
        self.allocator.clear_contents()

    def teardown(self) -> None:
        for seq_id in getattr(self, "texts", ()):
            self.allocator.free(seq_id)
        if hasattr(self, "allocator"):
            usage = self.allocator.usage()
            assert usage.cached + usage.free == usage.capacity


TestPages = PagesMachine.TestCase
EXAMPLES = int(os.environ.get("QUIRE_PAGES_EXAMPLES", "60"))
TestPages.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)


# -- by hand -------------------------------------------------------------------------------


class Texts:
    """Sequences over an allocator with blocks of one token; what they compute is published."""

    def __init__(
        self, pages: int, units: int, groups: list[tuple[int, Window | None]], state: int = 0
    ) -> None:
        self.allocator = make_allocator(pages, units, groups, size=1, host=100, state=state)
        self.full, self.windowed = paged(self.allocator)
        self.texts: dict[int, list[int]] = {}

    def admit(self, seq_id: int, text: list[int]) -> int | None:
        cached = self.allocator.admit(seq_id, self.demand(text))
        if cached is not None:
            self.texts[seq_id] = text[:cached]
            assert self.grow(seq_id, text[cached:])
        return cached

    def grow(self, seq_id: int, more: list[int]) -> bool:
        if self.allocator.append({seq_id: len(more)}) is None:
            return False
        text = self.texts[seq_id]
        text += more
        self.allocator.commit(seq_id, hash_blocks(b"", text, 1), len(text))
        self.allocator.settle()
        return True

    def demand(self, text: list[int]) -> Demand:
        return Demand(len(text), hash_blocks(b"", text, 1))

    def leave(self, *seq_ids: int) -> None:
        for seq_id in seq_ids:
            self.allocator.free(seq_id)

    def blocks(self, group: int, seq_id: int) -> tuple[int, ...]:
        return self.allocator.table(seq_id).kv_groups[group].block_ids


FAR = Window(100, 64)


def test_a_page_goes_to_whoever_needs_it() -> None:
    texts = Texts(6, 1, [(1, None), (1, Window(1, 64))])
    assert texts.admit(0, [1, 2, 3]) == 0  # three blocks each, and two are left behind
    assert texts.allocator.num_free_blocks == 0
    assert texts.grow(0, [4])
    assert texts.allocator.num_free_blocks == 1, "the window's went to the other KV group"
    assert texts.grow(0, [5])
    assert texts.allocator.usage() == Usage(used=6, cached=0)


def test_a_page_that_another_kv_group_finds_its_text_in_is_not_taken() -> None:
    texts = Texts(4, 1, [(1, None), (1, FAR)])
    texts.admit(0, [1])
    texts.leave(0)
    texts.allocator.advance(1.0)
    texts.admit(1, [9])
    texts.leave(1)  # all is cached, and what comes again has been unused for longest
    assert texts.admit(2, [1, 2]) == 1
    assert texts.allocator.usage().used == 4


def test_what_is_free_on_busy_pages_goes_first_where_pages_are_short() -> None:
    texts = Texts(3, 2, [(1, None), (2, FAR)])
    texts.admit(0, [9])
    texts.admit(1, [1])
    texts.leave(0)  # its block is cached, beside one that is held
    assert texts.grow(1, [2])
    assert texts.blocks(0, 1) == (1, 0) and texts.allocator.num_free_blocks == 0
    assert texts.allocator.blocks_to_append({1: 1}) == 2
    assert not texts.grow(1, [3])


def test_blocks_are_taken_from_the_fullest_page() -> None:
    texts = Texts(40, 4, [(1, None), (4, FAR)])
    for seq_id in range(12):
        texts.admit(seq_id, [seq_id])
    pages = [texts.blocks(0, seq_id)[0] // 4 for seq_id in range(12)]
    assert pages == sorted(pages) and len({*pages}) == 3
    texts.allocator.clear_contents()
    texts.leave(0, 4, 5, 6, 8, 9)  # one is left free, three, two
    for seq_id in range(12, 18):
        texts.admit(seq_id, [seq_id])
    places = [pages.index(texts.blocks(0, seq_id)[0] // 4) for seq_id in range(12, 18)]
    assert places == [0, 8, 8, 4, 4, 4]


def test_what_has_been_unused_for_longest_is_evicted_in_all_kv_groups() -> None:
    texts = Texts(8, 2, [(1, None), (2, FAR)])
    for number, text in enumerate(([1], [2], [3])):
        texts.allocator.advance(float(number))
        texts.admit(number, text)
    for number in (1, 0, 2):
        texts.allocator.advance(10.0 + number)
        texts.leave(number)
    texts.admit(3, [7, 8, 9, 7])  # takes more than is empty
    names = [hash_blocks(b"", [text], 1)[0] for text in (1, 2, 3)]
    found = [texts.windowed.locate(name) is not None for name in names]
    assert found == [False, False, True]
    assert texts.windowed.device.eviction(names[0]) is not None


def test_contents_that_callers_keep_are_taken_last() -> None:
    texts = Texts(4, 1, [(1, None), (1, FAR)])
    texts.admit(0, [1])
    texts.allocator.keep(0, 1, 100.0)
    texts.leave(0)
    texts.allocator.advance(1.0)
    texts.admit(1, [2])
    texts.leave(1)
    texts.admit(2, [3])
    assert texts.allocator.fit(texts.demand([1, 1])).cached == 1
    assert texts.grow(2, [4]), "if there is no other"


def test_whoever_has_much_kept_does_not_make_others_look_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = Texts(400, 4, [(1, None), (1, FAR)])
    for number in range(100):  # a page of each KV group, and a block of each is kept
        texts.admit(number, [4 * number + i for i in range(4)])
        texts.allocator.keep(number, 1, 100.0)
        texts.leave(number)
    texts.admit(100, [*range(1000, 1400)])
    texts.leave(100)
    looked, keeps = [], SharedPool.keeps
    monkeypatch.setattr(SharedPool, "keeps", lambda *a: looked.append(a) or keeps(*a))
    texts.admit(101, [*range(2000, 2400)])
    assert len(looked) <= 800, "each page is met twice at most, however many are taken"
    check_pages(texts.allocator)


def test_pages_of_what_is_kept_no_longer_are_taken_first_again() -> None:
    texts = Texts(400, 4, [(1, None), (1, FAR)])

    def come_and_go(numbers: range, *, kept: bool = False) -> None:
        for number in numbers:  # a page of each KV group
            texts.allocator.advance(number)
            texts.admit(number, [4 * number + i for i in range(4)])
            if kept:
                texts.allocator.keep(number, 4, 235.0)
            texts.leave(number)

    def found(number: int) -> int:
        return texts.allocator.fit(texts.demand([*range(4 * number, 4 * number + 4), 9])).cached

    come_and_go(range(50), kept=True)
    come_and_go(range(50, 230))
    check_pages(texts.allocator)
    assert [found(number) for number in range(50)] == [4] * 50
    come_and_go(range(230, 350))
    check_pages(texts.allocator)
    assert [found(number) for number in range(50)] == [0] * 50
    assert found(200) == 4, "it came later"


@pytest.mark.parametrize("swapped", [False, True])
def test_a_text_whose_blocks_lie_scattered_does_not_wait_for_ever(*, swapped: bool) -> None:
    texts = Texts(36, 5, [(1, None), (5, Window(20, 64))])
    text = [*range(25)]
    if swapped:
        assert texts.allocator.admit(99, texts.demand(text)) == 0
        texts.texts[99] = []
        assert texts.grow(99, text[:15])
        assert texts.allocator.swap_out([99])
        texts.full.device.clear()
        texts.windowed.device.clear()
    for count in range(1, 16):  # each token beside four of others
        texts.allocator.advance(float(count))
        texts.admit(1000 + count, [100 * count + i for i in range(4)])
        assert texts.admit(count, text[:count]) == count - 1
        gone = texts.blocks(1, 1000 + count)
        texts.leave(1000 + count, count)
        for block in gone:
            texts.windowed.invalidate(block)
    assert len({block // 5 for block in texts.full.device.cached_blocks()}) == 15
    if swapped:
        assert texts.allocator.swap_in([99]) is not None
    else:
        fit = texts.allocator.fit(texts.demand(text))
        assert fit == Fit(When.NOW, 30, 36, 36, evicted=fit.evicted)
        assert texts.admit(99, text) == 0


def test_branches_that_swap_together_share_what_they_shared() -> None:
    texts = Texts(12, 2, [(1, None), (2, FAR)])
    texts.admit(0, [1, 2, 3])
    assert texts.allocator.fork(0, 1) == []
    before = texts.allocator.usage()
    assert texts.allocator.swap_out([0, 1]) is not None
    texts.full.device.clear()
    texts.windowed.device.clear()
    assert texts.allocator.usage().free == 12 * 2
    assert texts.allocator.blocks_to_swap_in([0, 1]) == 2 + 3, "pages"
    moves = texts.allocator.swap_in([0, 1])
    assert moves is not None and len(moves) == 6
    assert texts.allocator.usage() == before
    check_pages(texts.allocator)


def test_a_demand_that_no_empty_memory_holds_is_refused() -> None:
    allocator = make_allocator(4, 2, [(1, None), (2, FAR)])
    assert allocator.fit(Demand(4)) == Fit(When.NOW, 3, 4, 4)
    assert allocator.fit(Demand(6)).when is When.NEVER  # two pages, and three
    assert allocator.admit(0, Demand(2)) == 0
    assert allocator.fit(Demand(4)) == Fit(When.LATER, 3, 2, 4)
    assert allocator.fit(Demand(2)) == Fit(When.NOW, 1, 2, 4)  # beside the other's


def test_padding_is_told_as_lost() -> None:
    allocator = make_allocator(3, 7, [(2, None), (7, FAR)])
    assert allocator.admit(0, Demand(4)) == 0  # two blocks of two tokens each
    assert allocator.usage() == Usage(reserved=4 * 2 + 4 * 7, external=2, free=42 - 38)


def test_counts_that_are_wrong_are_found_and_put_right() -> None:
    texts = Texts(12, 3, [(1, None), (3, FAR)])
    texts.admit(0, [1, 2])
    texts.admit(1, [3])
    texts.full.device.ref_counts[texts.blocks(0, 0)[0]] += 1
    assert texts.allocator.audit({0, 1})
    check_pages(texts.allocator)
    assert texts.allocator.audit({0}) and not texts.allocator.audit({0})
    check_pages(texts.allocator)


def names_of(*texts: list[int]) -> list[bytes]:
    """Of the last block of each."""
    return [hash_blocks(b"", text, 1)[-1] for text in texts]


def test_snapshots_have_what_is_idle_and_give_way_first() -> None:
    texts = Texts(20, 2, [(1, None), (1, FAR)], state=2)
    states = texts.allocator.kv_groups[-1]
    known = [[10 * number, 10 * number + 1] for number in range(6)]
    for number, text in enumerate(known):  # a page each of blocks, of the window's, and of states
        assert texts.admit(number, text) == 0
        texts.leave(number)
    assert states.device.num_cached == 6, "two would be a tenth"
    assert texts.admit(9, [91, 92, 93, 94]) == 0
    assert all(texts.full.locate(name) is not None for name in names_of(*known))
    assert states.device.num_cached == 3
    assert texts.grow(9, [95, 96]) and states.device.num_cached == 2
    assert all(texts.full.locate(name) is not None for name in names_of(*known))
    assert texts.grow(9, [97, 98]) and states.device.num_cached == 2, "a tenth"
    gone = [texts.full.locate(name) is None for name in names_of(*known)]
    assert gone == [True] + [False] * 5, "so what has been unused for longest goes"
    assert texts.grow(9, [*range(80, 90)]), "they go where nothing else is there"
    assert states.device.num_cached == 1
    check_pages(texts.allocator)


def test_a_snapshot_stays_where_who_goes_on_leaves_a_page_for_the_one_that_it_takes() -> None:
    texts = Texts(5, 2, [(1, None), (1, FAR)], state=2)
    assert texts.admit(0, [1, 2]) == 0
    texts.leave(0)
    assert texts.admit(1, [1, 2, 3]) == 2
    (name,) = names_of([1, 2])
    assert texts.allocator.locate_state(name) is None, "there is no page left: it is written over"
    texts.leave(1)
    texts = Texts(6, 2, [(1, None), (1, FAR)], state=2)
    assert texts.admit(0, [1, 2]) == 0
    texts.leave(0)
    assert texts.admit(1, [1, 2, 3]) == 2
    assert texts.allocator.locate_state(name) is not None
    check_pages(texts.allocator)


def test_states_that_fit_no_empty_memory_are_refused_and_others_wait() -> None:
    allocator = make_allocator(6, 2, [(1, None)], size=1, state=2)
    assert allocator.fit(Demand(2, forks=[(1, 2)] * 4)).when is When.NEVER
    assert allocator.fit(Demand(2, forks=[(1, 2)] * 2)).when is When.NOW
    assert allocator.admit(0, Demand(8)) == 0
    assert allocator.fit(Demand(1)) == Fit(When.LATER, 2, 1, 6)


def test_whoever_waits_or_gives_way_is_told_pages_that_are_needed_and_free() -> None:
    """By whichever way: let in, grown, brought back."""
    allocator = make_allocator(12, 3, [(1, None), (3, FAR)], host=40, state=2)
    assert allocator.unit == "pages"
    scheduler = make_scheduler(allocator, mode=PreemptionMode.SWAP)
    for name in "abc":
        prompt = tuple(range(ord(name), ord(name) + 2))
        scheduler.add(Request(name, prompt, SamplingParams(max_tokens=8), 8, 0))
    told: list[Decision] = []
    for clock in range(120):
        step = scheduler.schedule(float(clock))
        told += step.decisions
        outcomes = {one.seq_id: Outcome([Sample(7)]) for one in step.chunks if one.readout}
        scheduler.update(step, StepResult(outcomes), float(clock), lambda progress: False)
    assert not scheduler.has_work
    figures = [one for one in told if one.needed is not None]
    assert {one.unit for one in figures} == {"pages"}
    short = [one for one in figures if one.what in (Verdict.WAIT, Verdict.SWAP)]
    assert {why for one in short for why in WHYS if why in one.why} == {*WHYS}
    assert all(one.free is not None and (one.needed or 0) > one.free for one in short)


def test_how_long_a_prompt_may_be_is_told_in_tokens() -> None:
    """Whoever is refused; what it needs is told in pages."""
    allocator = make_allocator(6, 2, [(1, None)], size=1, state=2)
    longest = max(n for n in range(1, 40) if allocator.fit(Demand(n)).when is not When.NEVER)
    prompt = tuple(range(longest + 3))
    request = Request("a", prompt, SamplingParams(max_tokens=1), 1, 0)
    with pytest.raises(ContextLengthError, match="pages needed, the pool has 6") as error:
        fitted(request, longest + 3, allocator)
    assert error.value.most == longest
