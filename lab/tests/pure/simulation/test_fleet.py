"""Several engines on one clock: what one does, what is conserved, and who gets what."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.core.protocol import Step
from quire.engine.traces.request import Segment, TraceRequest
from quire_cluster.rules import ReplicaDemand
from quire_lab.simulation import (
    AcceptanceProfile,
    ClosedLoop,
    Deployment,
    OpenLoop,
    SimulatedDrafting,
    Simulator,
)
from quire_lab.simulation.fleet import (
    ROUTINGS,
    Autoscaling,
    Failure,
    Failures,
    FleetSetup,
    FleetSimulator,
    Life,
    ReplicaKind,
    Role,
    Router,
    TransferCosts,
)
from quire_lab.simulation.fleet.autoscaling import Autoscaler
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.replica import SimulatedReplica
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import RequestRecord
from support.fleets import BLOCK, UnevenCosts, served, small


def fleet(count: int, deployment: Deployment | None = None, **facts: Any) -> FleetSetup:
    return FleetSetup((ReplicaKind(deployment or small()),) * count, **facts)


def noted(steps: list[Any]) -> Any:
    def note(now: float, step: Step) -> None:
        chunks = [(c.seq_id, len(c.token_ids), c.start, c.table, c.readout) for c in step.chunks]
        steps.append((now, step.moves, chunks, step.decisions))

    return note


segments = st.builds(Segment, st.integers(0, 3), st.integers(1, 20))


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceRequest]:
    arrival, requests = 0.0, []
    for _ in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from([0.0, 0.001, 0.01, 0.2, 1.0]))
        content = tuple(draw(st.lists(segments, max_size=4)))
        kind = draw(st.sampled_from([(1, False), (1, False), (1, False), (3, False), (2, True)]))
        lengths = draw(st.integers(1, 40)), draw(st.integers(1, 40))
        requests.append(TraceRequest(arrival, *lengths, *kind, content=content))
    return requests


@settings(max_examples=25, deadline=None)
@given(workloads(), st.sampled_from(ROUTINGS), st.booleans(), st.sampled_from([None, 2]))
def test_a_fleet_of_one_is_the_engine(
    workload: list[TraceRequest], routing: str, drafts: bool, users: int | None
) -> None:
    """Step for step, and to the last bit of every figure."""
    deployment = small()
    if drafts:
        told = SimulatedDrafting(acceptance=AcceptanceProfile.parse("0.6", 1.0))
        deployment = replace(deployment, drafting=told)
    kept = KeptResults(Goals(ttft=0.05, tpot=0.01), records=None, decisions=None)
    one_steps: list[Any] = []
    fleet_steps: list[Any] = []
    note = noted(fleet_steps)
    alone = Simulator(
        deployment.limits(), UnevenCosts(), kept, drafting=deployment.drafting,
        on_step=noted(one_steps),
    )  # fmt: skip
    together = FleetSimulator(
        fleet(1, deployment, routing=routing), kept,
        on_step=lambda slot, now, step: note(now, step),
    )  # fmt: skip
    expected = alone.serve(ClosedLoop(workload, users) if users else OpenLoop(workload))
    result = together.serve(ClosedLoop(workload, users) if users else OpenLoop(workload))
    assert result.replicas[0].result == expected
    assert fleet_steps == one_steps
    for name in ("ttft", "tpot", "e2e_latency", "normalized_latency", "num_met_goals", "seconds"):
        assert getattr(result, name) == getattr(expected, name), name


@st.composite
def fleets(draw: st.DrawFn) -> FleetSetup:
    apart = draw(st.booleans())
    roles = [Role.PREFILL, Role.DECODE] if apart else [Role.BOTH]
    roles += draw(st.lists(st.sampled_from(roles), max_size=2))
    kinds = tuple(ReplicaKind(small(draw(st.sampled_from([1.0, 2.5]))), role) for role in roles)
    told = draw(st.lists(
        st.builds(Failure, st.sampled_from([0.0, 0.013, 0.1, 0.4]), st.integers(0, len(kinds) - 1),
                  st.sampled_from([None, 0.01, 0.3])), max_size=3,
    ))  # fmt: skip
    autoscaling = None
    if not apart and draw(st.booleans()):
        kinds, autoscaling = kinds[:1], Autoscaling(1, 3, 0.01, 0.2, 0.0, 1.0)
        told = [failure._replace(replica=0) for failure in told]
    return FleetSetup(
        kinds, draw(st.sampled_from(ROUTINGS)),
        Failures(tuple(told), draw(st.sampled_from([None, None, 1.0]))),
        start_seconds=draw(st.sampled_from([0.05, 1.5])), autoscaling=autoscaling,
        transfer=TransferCosts(draw(st.sampled_from([1e6, 1e12])), 0.002),
        max_local_prefill_length=draw(st.sampled_from([None, 0, 12])),
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(fleets(), workloads())
def test_nothing_is_lost_or_made_of_nothing(
    setup: FleetSetup, workload: list[TraceRequest]
) -> None:
    ends: list[RequestRecord] = []
    result = served(setup, workload, on_record=ends.append)
    assert sorted(int(record.request_id) for record in ends) == list(range(len(workload)))
    assert result.num_finished + result.num_refused == len(workload)
    done = [record for record in ends if record.metrics is not None]
    asked = [workload[int(record.request_id)] for record in done]
    assert result.tokens_in == sum(one.prompt_tokens for one in asked)
    for record, one in zip(done, asked, strict=True):
        assert record.metrics is not None
        assert record.metrics.arrival_time == one.arrival
        if not one.beam_search:
            assert record.metrics.num_output_tokens == one.output_tokens * one.n
    assert result.tokens_out == sum(r.metrics.num_output_tokens for r in done if r.metrics)
    behind_proxy = setup.max_local_prefill_length is None
    prefill = [one for one in result.replicas if one.role == "prefill"]
    answering = [one for one in result.replicas if one.role != "prefill"]
    assert sum(one.result.num_finished for one in answering) == result.num_finished
    # Prompts that another has asked for are not lost to a client with who computed them.
    losing = result.replicas if behind_proxy else answering
    assert sum(one.num_lost for one in losing) == result.num_lost
    if prefill and behind_proxy:
        assert sum(one.result.num_finished for one in prefill) >= result.num_finished
    for one in prefill:
        assert one.result.tokens_out == one.result.num_finished
    for one in result.replicas:
        ended = one.result.num_finished + one.result.num_refused
        # Some are lost before they or their blocks have come.
        assert ended <= one.num_sent <= ended + one.num_lost
        held = sum((p.used + p.reserved + p.internal) * p.seconds for p in one.result.series)
        charged = sum(r.metrics.block_seconds for r in one.result.records if r.metrics)
        assert held / BLOCK == pytest.approx(charged + one.lost_block_seconds, abs=1e-9)
        assert one.result.busy_seconds <= one.served_seconds + 1e-9
        assert one.served_seconds <= one.paid_seconds + 1e-9 <= result.seconds + 1e-6


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(fleets(), workloads())
def test_the_same_again_and_step_by_step(setup: FleetSetup, workload: list[TraceRequest]) -> None:
    result = served(setup, workload)
    assert repr(served(setup, workload)) == repr(result)
    assert served(setup, workload, skip_ahead=False) == result


class Assigned:
    """Each request to the replica that somebody who knows the future has chosen."""

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots = slots

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        return replicas[self._slots[flight.number] % len(replicas)]

    def done(self, flight: Flight, replica: SimulatedReplica) -> None:
        pass


@settings(max_examples=4, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.1]), st.integers(1, 40), st.integers(1, 20), segments
        ),
        min_size=5,
        max_size=5,
    ),
    st.booleans(),
)
def test_who_knows_the_future_is_never_beaten(drawn: list[Any], apart: bool) -> None:
    """But for one who prefills for both, there is nothing else to choose."""
    roles = (Role.PREFILL, Role.DECODE, Role.DECODE) if apart else (Role.BOTH, Role.BOTH)
    setup = FleetSetup(
        tuple(ReplicaKind(small(), role) for role in roles), max_local_prefill_length=12
    )
    times = itertools.accumulate(gap for gap, *_ in drawn)
    workload = [
        TraceRequest(time, prompt, output, content=(content,))
        for time, (_, prompt, output, content) in zip(times, drawn, strict=True)
    ]
    best = min(
        served(setup, workload, make_router=lambda slots=slots: Assigned(slots)).ttft.mean
        for slots in itertools.product((0, 1), repeat=5)
    )
    for routing in ROUTINGS:
        chosen = served(replace(setup, routing=routing), workload).ttft.mean
        assert best <= chosen + 1e-12, routing


def sent(setup: FleetSetup, workload: list[TraceRequest], **facts: Any) -> list[int]:
    return [one.num_sent for one in served(setup, workload, **facts).replicas]


def test_who_gets_a_request() -> None:
    """Long prompts and short ones in turn: who only counts gives one replica all the long ones."""
    turns = [TraceRequest(i / 100, 100 if i % 2 else 1, 8) for i in range(12)]
    assert sent(fleet(2, routing="round-robin"), turns) == [6, 6]
    for routing in ("least-loaded", "shortest-wait", "prefix-aware"):
        result = served(fleet(2, routing=routing), turns)
        assert result.ttft.mean < 0.8 * served(fleet(2, routing="round-robin"), turns).ttft.mean


def test_prompts_that_begin_alike_meet() -> None:
    chats = [
        TraceRequest(i * 0.5, 80, 4, content=(Segment(f"chat {i % 3}", 72),)) for i in range(18)
    ]
    hits = {name: served(fleet(3, routing=name), chats).hit_share for name in ROUTINGS}
    assert hits["prefix-aware"] > 0.7
    jumbled = [replace(chat, content=(Segment(f"chat {i * 7 % 5}", 72),))
               for i, chat in enumerate(chats)]  # fmt: skip
    hits = {name: served(fleet(3, routing=name), jumbled).hit_share for name in ROUTINGS}
    assert hits["prefix-aware"] > 1.2 * hits["round-robin"]


def test_the_faster_machine_gets_more() -> None:
    kinds = (ReplicaKind(small(1.0)), ReplicaKind(small(4.0)))
    workload = [TraceRequest(i / 30, 30, 4) for i in range(60)]
    fast, slow = sent(FleetSetup(kinds, "shortest-wait"), workload)
    assert fast > 1.5 * slow


def test_what_a_lost_replica_had_is_sent_again() -> None:
    workload = [TraceRequest(0.0, 20, 30) for _ in range(4)]
    calm = served(fleet(2), workload)
    ends: list[RequestRecord] = []
    setup = fleet(2, failures=Failures((Failure(0.1, 0),)))
    result = served(setup, workload, on_record=ends.append)
    assert result.num_finished == 4 and result.num_resent == result.num_lost == 2
    first, second = result.replicas
    assert (first.num_failures, first.num_lost, second.num_sent) == (1, 2, 4)
    assert first.lost_tokens > 0
    assert result.resent_ttft.mean > 0.1 > calm.ttft.maximum
    # It served for a tenth of a second, and was paid for no longer.
    assert first.served_seconds == first.paid_seconds == pytest.approx(0.1)
    assert first.result.busy_seconds == pytest.approx(0.1)
    assert first.lives == (Life(0.0, 0.0, 0.1, failed=True),)
    assert second.lives == (Life(0.0, 0.0, result.seconds, failed=False),)
    late = served(fleet(1, failures=Failures((Failure(0.1, 0, 5.0),))), workload)
    assert late.resent_ttft.mean > 5.0
    assert late.replicas[0].lives[1][:2] == (0.1, 5.1)
    gone = served(fleet(1, failures=Failures((Failure(0.1, 0),))), workload)
    assert (gone.num_finished, gone.num_refused) == (0, 4)
    assert gone.first_refusal == "no replica is left"


def test_replicas_come_and_go() -> None:
    """Demand for a while: more are started, need their time, and leave when it is over."""
    slow = small(4.0)
    burst = [TraceRequest(i / 10, 60, 20) for i in range(200)]
    later = [TraceRequest(25 + i * 1.0, 10, 2) for i in range(60)]
    scaling = Autoscaling(1, 4, upscale_delay=2.0, downscale_delay=5.0)
    result = served(fleet(1, slow, autoscaling=scaling, start_seconds=3.0), [*burst, *later])
    assert result.most_serving == 4 and len(result.replicas) == 4
    one, *others = result.replicas
    assert one.paid_seconds == pytest.approx(result.seconds)
    for other in others:
        assert 3.0 < other.paid_seconds < result.seconds - 10
        assert other.served_seconds == pytest.approx(other.paid_seconds - 3.0)
    alone, four = served(fleet(1, slow), burst), served(fleet(4, slow), burst)
    assert four.ttft.mean < result.ttft.mean < alone.ttft.mean


def test_a_target_waits_for_its_delay() -> None:
    scaler = Autoscaler(Autoscaling(1, 4, upscale_delay=3.0, downscale_delay=6.0), 1)
    targets = []
    for second in range(30):
        demand = ReplicaDemand(1.0 if second < 10 else 0.0, 0.0)
        scaler.observe(float(second), {str(i): demand for i in range(scaler.target)})
        targets.append(scaler.target)
    assert targets[:4] == [1, 1, 1, 2] and max(targets) == 3
    assert targets[-1] == 1


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: fleet(0), "replicas must be from 1 to 1,024, got 0"),
        (lambda: FleetSetup((ReplicaKind(small(), Role.DECODE),)), "decode need some for prefill"),
        (lambda: FleetSetup(tuple(ReplicaKind(small(), role) for role in Role)), "one of the two"),
        (lambda: fleet(2, failures=Failures((Failure(1.0, 2),))), "numbered from 0 to 1"),
        (lambda: fleet(5, autoscaling=Autoscaling(1, 4)), "1 to 4; got 5"),
        (lambda: FleetSetup((ReplicaKind(small()), ReplicaKind(small(2.0))),
                            autoscaling=Autoscaling(1, 4)), "that are all alike"),
        (lambda: FleetSetup(tuple(ReplicaKind(small(enable_prefix_caching=False), role)
                                  for role in (Role.PREFILL, Role.DECODE))), "prefix caching"),
        (lambda: Failures(mtbf=0.0), "mtbf must be from 1"),
        (lambda: Failure.parse("5"), "fail_at must be SECONDS:REPLICA"),
        (lambda: TransferCosts(bandwidth=0.0), "transfer_gb must be above 0"),
    ],
)  # fmt: skip
def test_fleets_that_cannot_be(make: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_a_run_gives_up_with_the_first_request_too_many() -> None:
    workload = [TraceRequest(0.0, 40, 20) for _ in range(30)]
    router: Router = Assigned([0] * 30)
    early = FleetSimulator(
        fleet(2), KeptResults(Goals(ttft=0.01), most_missed=3), make_router=lambda: router
    ).run(workload)
    assert early.num_finished - early.num_met_goals == 4


def test_lives_are_drawn_by_the_seed() -> None:
    failures = Failures(mtbf=50.0)
    drawn = Counter(failures.life(seed, 0, 1) for seed in (1, 1, 2))
    assert sorted(drawn.values()) == [1, 2]
