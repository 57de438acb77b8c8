"""What a step has to do, where layers see no further than their windows."""

from __future__ import annotations

import pytest

from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockTable, Window
from quire.core.protocol import Chunk, Readout, Step
from quire.engine.traces.request import TraceRequest
from quire.engine.work import EVERYTHING, Sight, Work
from quire_lab.simulation import Simulator, sights_of, work_of
from support.limits import make_limits


def step(*chunks: tuple[int, int]) -> Step:
    """Chunks from a position on, so many tokens each."""
    table, readout = BlockTable((), 16), Readout()
    return Step(
        chunks=[
            Chunk(i, [0] * count, start, table, 999, readout)
            for i, (start, count) in enumerate(chunks)
        ]
    )


@pytest.mark.parametrize("most", [None, 1, 5, 8, 100])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 7), (3, 4), (3, 20), (50, 9), (50, 1)])
def test_pairs_and_context_are_counted(most: int | None, start: int, count: int) -> None:
    sight = Sight(1, most)
    seen = [
        range(max(0, place + 1 - (most or place + 1)), place + 1)
        for place in range(start, start + count)
    ]
    assert sight.pairs(start, count) == sum(map(len, seen))
    assert sight.context(start, count) == len(set().union(*seen))


@pytest.mark.parametrize("most", [None, 5, 40])
@pytest.mark.parametrize("drafts", [1, 3, 16])
def test_drafts_are_rows_of_a_sequence_that_decodes(most: int | None, drafts: int) -> None:
    start = 30
    chunk = Chunk(0, [0] * (1 + drafts), start, BlockTable((), 16), 9, Readout(1 + drafts))
    work = work_of(Step(chunks=[chunk]), (Sight(1, most),))
    rows = [
        range(max(0, place + 1 - (most or place + 1)), place + 1)
        for place in range(start, start + 1 + drafts)
    ]
    assert (
        work
        == Work(
            decode_seqs=1,
            decode_context=len(set().union(*rows)),  # read once
            samples=1 + drafts,
            draft_tokens=drafts,
            draft_pairs=sum(map(len, rows[1:])),
        )
    )
    assert work.num_tokens == 1 + drafts
    caught_up = chunk._replace(token_ids=[0] * (9 + drafts))  # a prompt's end computed anew
    assert work_of(Step(chunks=[caught_up])).prefill_tokens == 9 + drafts


def test_layers_are_weighed() -> None:
    windowed = KVGroup((1, 2, 3), 9, 0, Window(6, 64, sinks=2))
    assert sights_of([KVGroup((0, 1), 9)]) is EVERYTHING
    sights = sights_of([KVGroup((0,), 9), windowed])
    assert sights == (Sight(0.25, None), Sight(0.75, 8))
    work = work_of(step((99, 1), (10, 4)), sights)
    assert work == Work(
        prefill_tokens=4,
        prefill_pairs=0.25 * (4 * 10 + 10) + 0.75 * 4 * 8,
        prefill_context=0.25 * 14 + 0.75 * 11,
        decode_seqs=1,
        decode_context=0.25 * 100 + 0.75 * 8,
        samples=2,
    )


def test_a_simulation_charges_for_what_is_seen() -> None:
    seen: list[Work] = []

    class Costs:
        def seconds(self, work: Work) -> float:
            seen.append(work)
            return 1.0

        def recovery_costs(self, block_size: int) -> object:
            return None

    limits = make_limits(40, 500, windows=(None, 48))
    Simulator(limits, Costs()).run([TraceRequest(0.0, 100, 101)])  # type: ignore[arg-type]
    assert seen[-1].decode_context == (200 + 48) / 2
