"""Steps that only decode are taken together: the result must be the same to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.limits import EngineLimits
from quire.core.memory import KeptState, PageShare
from quire.core.protocol import RecoveryCosts, Step
from quire.engine.traces.request import Segment, TraceRequest
from quire.engine.work import Work
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.simulator import Simulator
from quire_lab.simulation.steady_decoding import NEXT
from support.limits import make_limits
from support.slow import random_runs


class UnevenCosts:
    """Times that no two steps share, so that a step in the wrong place shows."""

    def seconds(self, work: Work) -> float:
        return (
            0.003 + 7e-4 * work.prefill_tokens + 1.1e-4 * work.decode_seqs
            + 1.3e-6 * work.decode_context + 1e-3 * (work.copied_blocks + work.swapped_blocks)
        )  # fmt: skip

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(swap_per_block=5e-4, recompute_per_token=3e-4)


def run(
    setup: EngineLimits, workload: list[TraceRequest], skip_ahead: bool, visited: float | None
) -> tuple[SimulationResult, dict[float, Any]]:
    """The result, and what each step that the scheduler made did, by its time; and block tables as
    they were in the step that was visited."""
    steps: dict[float, Any] = {}

    def note(now: float, step: Step) -> None:
        chunks = [(c.seq_id, len(c.token_ids), c.start, c.table, c.readout) for c in step.chunks]
        steps[now] = (step.moves, chunks, step.decisions)

    simulator = Simulator(
        setup, UnevenCosts(), KeptResults(records=None, decisions=None), skip_ahead=skip_ahead,
        on_step=note,
    )  # fmt: skip
    scheduler = simulator.engine.scheduler

    def look(now: float) -> None:
        ids = [seq_id for group in scheduler.running for seq_id in group.tables()]
        seen = [(one, scheduler.allocator.table(one).block_ids) for one in ids]
        steps[now] = (*steps[now], seen, scheduler.allocator.views()[0].cached_blocks())

    if visited is not None:
        simulator.engine.visit(visited, look)
    return simulator.run(workload), steps


def test_some_steps_are_skipped() -> None:
    setup = make_limits(num_blocks=100, max_model_len=200)
    workload = [TraceRequest(0.0, 10, 100), TraceRequest(0.1, 10, 80)]
    ahead, few = run(setup, workload, True, None)
    result, all_steps = run(setup, workload, False, None)
    assert ahead == result
    assert len(few) < 10 < len(all_steps) == result.num_steps


def test_steps_are_not_taken_together_while_somebody_waits_for_a_time() -> None:
    """Else nobody would look whether it has waited for too long, or who is next."""
    workload = [TraceRequest(0.0, 10, 60), TraceRequest(0.0, 10, 60)]
    for waiting, together in (
        ({}, True),
        ({"max_queue_time": 100.0}, False),
        ({"scheduling_policy": "fair"}, False),
    ):
        setup = make_limits(100, 200, max_num_seqs=1, **waiting)
        result, steps = run(setup, workload, True, None)
        assert result.num_steps == 120
        # The second is alone, and nobody waits.
        assert len(steps) < 20 if together else 60 <= len(steps) < 70


def test_a_block_is_shared_by_who_is_let_in_while_its_owner_only_decodes() -> None:
    """The answer of the first is what the third begins with."""
    setup = make_limits(50, 100, block_size=2, max_num_batched_tokens=3, max_num_seqs=4)
    said = (Segment(1, 2),)
    workload = [
        TraceRequest(0.0, 1, 2, content=said),
        TraceRequest(0.0, 1, 1),
        TraceRequest(0.001, 3, 1, content=said),
    ]
    result, _ = run(setup, workload, False, None)
    assert run(setup, workload, True, None)[0] == result
    assert [one.metrics.cached_tokens for one in result.records] == [0, 0, 2]


@pytest.mark.parametrize(
    "kept", [{"windows": (None, 24)}, {"states": 1}, {"windows": (None, 24), "states": 2}], ids=str
)
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_steps_of_windows_and_of_states_are_skipped_too(
    kept: dict[str, Any], enable_prefix_caching: bool
) -> None:
    """Sequences give blocks back as they grow, or leave copies."""
    setup = make_limits(100, 200, enable_prefix_caching=enable_prefix_caching, **kept)
    result, steps = run(setup, [TraceRequest(0.0, 10, 90)], True, None)
    assert run(setup, [TraceRequest(0.0, 10, 90)], False, None)[0] == result
    assert len(steps) < 10 < result.num_steps == 90


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("spans", [(), (1, 2), (3, 1)], ids=str)
@pytest.mark.parametrize(
    "kept",
    [{"windows": (None, 1)}, {"windows": (5, None)}, {"states": 1}, {"windows": (None, 24, 24)}],
    ids=str,
)
def test_what_layers_keep_is_the_same(
    kept: dict[str, Any], spans: tuple[int, ...], enable_prefix_caching: bool
) -> None:
    """Texts that fork, that share a beginning, and that are more than there is room for."""
    setup = make_limits(
        40, 90, block_size=4, max_num_seqs=8, max_num_batched_tokens=16,
        enable_prefix_caching=enable_prefix_caching, **kept,
    )  # fmt: skip
    setup = with_snapshots(setup, KeptState(8, 8))
    if spans:
        setup = on_pages(setup, spans, 6)
    said = (Segment(1, 30),)
    workload = [
        TraceRequest(0.01 * i, 7 + 5 * i, 60 - 3 * i, n=3 if i % 4 == 3 else 1, content=said)
        for i in range(9)
    ]
    ahead, few = run(setup, workload, True, None)
    result, all_steps = run(setup, workload, False, None)
    assert ahead == result
    assert len(few) < len(all_steps)


segments = st.builds(Segment, st.integers(0, 3), st.integers(1, 20))


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRequest]:
    arrival, requests = 0.0, []
    for _ in range(draw(st.integers(1, 12))):
        arrival += draw(st.sampled_from([0.0, 0.001, 0.01, 0.2]))
        output = draw(st.integers(1, 50))
        limit = draw(st.sampled_from([None, None, output, output + 7]))
        content = tuple(draw(st.lists(segments, max_size=4)))
        prompt = draw(st.integers(1, 40))
        kind = draw(st.sampled_from([(1, False), (1, False), (1, False), (3, False), (2, True)]))
        adapter = draw(st.sampled_from([None, None, "a", "b", "c"]))
        requests.append(
            TraceRequest(arrival, prompt, output, *kind, limit, content, adapter=adapter)
        )
    return requests


def kept_layers(draw: st.DrawFn) -> dict[str, Any]:
    """Layers that keep all, that see no further than a window, that keep a state."""
    window = draw(st.sampled_from([1, 5, 24, 64]))
    windows = draw(st.sampled_from([(None,), (None,), (window,), (None, window)]))
    return {"windows": windows, "states": draw(st.sampled_from([0, 0, 1]))}


def on_pages(limits: EngineLimits, spans: Sequence[int], units: int) -> EngineLimits:
    """The same, with pages that its KV groups share, of as much memory or less."""
    pages = max(2 * limits.max_num_seqs, limits.kv_groups[0].num_blocks * sum(spans) // units)
    shares = [PageShare(pages, units, span) for span in spans]
    kv_groups = (
        one._replace(num_blocks=pages * share.per_page, share=share)
        for one, share in zip(limits.kv_groups, shares, strict=True)
    )
    return replace(limits, kv_groups=tuple(kv_groups))


def with_snapshots(limits: EngineLimits, often: KeptState) -> EngineLimits:
    """The same, with these of states."""
    kv_groups = (
        one if one.state is None else one._replace(state=often) for one in limits.kv_groups
    )
    return replace(limits, kv_groups=tuple(kv_groups))


@st.composite
def setups(draw: st.DrawFn) -> EngineLimits:
    size = draw(st.sampled_from([1, 2, 4, 16]))
    host = draw(st.sampled_from([0, 40]))
    modes = ["recompute", "auto", "swap"] if host else ["recompute"]
    allocator = draw(st.sampled_from(["paged", "paged", "paged", "max", "pow2", "oracle"]))
    limits = make_limits(
        num_blocks=draw(st.sampled_from([100, 200, 400])) // size,
        max_model_len=100,
        block_size=size,
        max_num_seqs=draw(st.sampled_from([1, 4, 8])),
        max_num_batched_tokens=draw(st.sampled_from([3, 8, 32])),
        kv_allocator=allocator,
        enable_prefix_caching=allocator == "paged" and draw(st.booleans()),
        preemption_mode=draw(st.sampled_from(modes)),
        num_host_blocks=host,
        scheduling_policy=draw(st.sampled_from(["fcfs", "fcfs", "priority", "fair"])),
        max_queue_time=draw(st.sampled_from([None, None, 0.3])),
        **draw(st.sampled_from([{}, {"max_loras": 2, "enable_lora": True}])),
        **(kept_layers(draw) if allocator == "paged" else {}),
    )
    often = KeptState(2 * size, draw(st.sampled_from([1, 2, 4])) * size)
    limits = with_snapshots(limits, often)
    if len(limits.kv_groups) == 1 or draw(st.booleans()):
        return limits
    spans = [draw(st.sampled_from([1, 2, 3, 7])) for _ in limits.kv_groups]
    units = max(spans) * draw(st.integers(1, 3)) + draw(st.integers(0, 1))
    return on_pages(limits, spans, units)


@pytest.mark.slow
@settings(max_examples=random_runs(200), deadline=None)
@given(setups(), workloads(), st.sampled_from([None, 0.0, 0.05, 0.5]))
def test_skipping_ahead_changes_nothing(
    setup: EngineLimits, workload: list[TraceRequest], visited: float | None
) -> None:
    ahead, few = run(setup, workload, True, visited)
    result, all_steps = run(setup, workload, False, visited)
    for time, (moves, chunks, decisions, *seen) in few.items():
        all_moves, all_chunks, all_decisions, *all_seen = all_steps[time]
        left_out = all_chunks[: len(all_chunks) - len(chunks)]
        assert (moves, left_out + chunks, decisions) == (all_moves, all_chunks, all_decisions)
        assert seen == all_seen
        assert all(tokens == 1 and readout == NEXT for _, tokens, _, _, readout in left_out)
    assert ahead == result
