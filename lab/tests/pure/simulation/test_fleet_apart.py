"""Prefill apart: as ``quire deploy`` has it, where who answers asks for a prompt, and fetches it;
and behind a proxy, which sends every prompt to prefill first."""

from __future__ import annotations

from typing import Any

import pytest

from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.simulation import MODELS
from quire_lab.simulation.fleet import (
    Failure,
    Failures,
    FleetSetup,
    ReplicaKind,
    Role,
    TransferCosts,
)
from support.fleets import served, small

LONG = TraceRequest(0.0, 41, 10)  # ten full blocks


def apart(prefill: int, decode: int, most_local: int, **facts: Any) -> FleetSetup:
    roles = (Role.PREFILL,) * prefill + (Role.DECODE,) * decode
    kinds = tuple(ReplicaKind(small(), role) for role in roles)
    facts.setdefault("transfer", TransferCosts(1e15, 0.25))
    return FleetSetup(kinds, max_local_prefill_length=most_local, **facts)


def at(time: float, name: str | None = None) -> TraceRequest:
    content = () if name is None else (Segment(name, 41),)
    return TraceRequest(time, 41, 10, content=content)


def test_only_what_is_long_and_new_is_asked_for() -> None:
    prefill, decode = served(apart(1, 1, 39), [LONG]).replicas
    assert (prefill.num_sent, decode.num_sent, decode.fetched_tokens) == (1, 1, 40)
    prefill, decode = served(apart(1, 1, 40), [LONG]).replicas
    assert (prefill.num_sent, decode.num_sent, decode.fetched_tokens) == (0, 1, 0)
    # The second is cached where it is answered; of the third nine blocks are.
    chat = [at(0.0, "a"), at(2.0, "a"), TraceRequest(4.0, 57, 3, content=(Segment("a", 36),))]
    for most_local, asked in ((19, 2), (20, 1)):
        result = served(apart(1, 1, most_local), chat)
        assert result.replicas[0].num_sent == result.transfers.count == asked
        assert result.replicas[1].fetched_tokens == (40 if asked == 1 else 60)


def test_who_answers_is_chosen_first_and_waits_for_the_blocks() -> None:
    result = served(apart(1, 1, 0), [LONG])
    prefill, decode = result.replicas
    assert result.transfers.mean == pytest.approx(0.25)
    # What is left to do here: ten blocks to move, and one token to compute.
    step = 0.003 + 1.1e-4 + 41 * 1.3e-6 + 10 * 1e-3 + 0.002
    expected = prefill.result.ttft.mean + 0.25 + step
    assert result.ttft.mean == pytest.approx(expected, abs=1e-6)
    assert decode.result.tokens_out == 10
    # Two who ask at once for what one computes do not wait for two; three wait in one's line.
    two = served(apart(1, 2, 0), [at(0.0), at(0.0)])
    assert [one.num_sent for one in two.replicas] == [2, 1, 1]
    three = served(apart(1, 1, 0), [at(0.0), at(0.0), at(0.0)])
    assert three.ttft.maximum > result.ttft.mean + 2 * 0.25  # one link


def test_what_came_for_another_is_not_sent_again() -> None:
    """Both have asked for all before any of it had come; ten blocks of the two are the same."""
    at_once = TransferCosts(1e15, 0.0)
    more = TraceRequest(0.01, 61, 3, content=(Segment("a", 41),))
    both = served(apart(1, 1, 0, transfer=at_once), [at(0.0, "a"), more])
    once = served(apart(1, 1, 0, transfer=at_once), [at(0.0, "a")])
    assert (both.transfers.count, once.transfers.count) == (2, 1)
    assert both.transferred_bytes * 10 == once.transferred_bytes * 15 > 0


def test_who_prefills_and_dies_costs_a_recompute_and_nothing_is_lost() -> None:
    calm = served(apart(1, 1, 40), [LONG])
    setup = apart(1, 1, 0, failures=Failures((Failure(0.02, 0),)))
    result = served(setup, [LONG])
    assert (result.num_lost, result.num_resent, result.num_finished) == (0, 0, 1)
    prefill, decode = result.replicas
    assert (prefill.num_lost, decode.fetched_tokens, result.transfers.count) == (1, 0, 0)
    assert abs(result.ttft.mean - calm.ttft.mean - 0.02) < 1e-9


def test_where_nobody_prefills_prompts_are_computed_where_they_are_answered() -> None:
    """After a second; then nobody asks for five, then ten; who comes in time takes it."""
    alone = served(apart(1, 1, 40), [LONG]).ttft.mean
    gone = Failures((Failure(0.0, 0),))
    times = (1.0, 3.0, 6.9, 7.1, 13.0, 18.0, 18.3)
    waits = []
    for count in range(1, len(times) + 1):
        workload = [at(time) for time in times[:count]]
        result = served(apart(1, 1, 0, failures=gone), workload)
        assert result.num_finished == count and result.replicas[0].num_sent == 0
        waits.append(result.replicas[1].result.records[-1].metrics.ttft)  # type: ignore[union-attr]
    asked = [round(wait - alone, 6) for wait in waits]
    assert asked == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    back = Failures((Failure(0.0, 0, 0.5),))
    result = served(apart(1, 1, 0, failures=back), [at(1.0)])
    assert result.replicas[0].num_sent == 1
    assert abs(result.ttft.mean - served(apart(1, 1, 0), [LONG]).ttft.mean - 0.5) < 1e-9


def test_who_asked_and_died_has_asked_for_another() -> None:
    """The prompt is computed once, and goes to who has the request now; or to nobody."""
    setup = apart(1, 2, 0, routing="round-robin", failures=Failures((Failure(0.02, 1),)))
    result = served(setup, [LONG])
    prefill, first, second = result.replicas
    assert (result.num_lost, result.num_resent, result.num_finished) == (1, 1, 1)
    assert (prefill.num_sent, prefill.result.num_finished) == (1, 1)
    assert (first.num_sent, second.num_sent, second.fetched_tokens) == (0, 1, 40)
    gone = served(apart(1, 1, 0, failures=Failures((Failure(0.02, 1),))), [LONG])
    assert (gone.num_finished, gone.num_refused) == (0, 1)
    assert gone.replicas[0].result.num_finished == 1


def behind_proxy(kinds: tuple[ReplicaKind, ...], **facts: Any) -> FleetSetup:
    return FleetSetup(kinds, max_local_prefill_length=None, **facts)


def test_prompts_are_handed_over() -> None:
    """What was computed is fetched, all but the last block; the way there takes time."""
    kinds = (ReplicaKind(small(), Role.PREFILL), ReplicaKind(small(), Role.DECODE))
    workload = [TraceRequest(i * 1.0, 41, 10) for i in range(5)]
    model = MODELS["llama-3-8b"]
    token = model.kv_bytes_per_token // model.num_layers  # as if it had one layer
    costs = TransferCosts(bandwidth=40 * token / 0.25, latency=0.05)
    result = served(behind_proxy(kinds, transfer=costs), workload)
    prefill, decode = result.replicas
    assert (prefill.result.tokens_out, decode.result.tokens_out) == (5, 50)
    assert decode.fetched_tokens == 5 * 40
    assert result.transferred_bytes == 5 * 40 * token
    assert result.transfers.mean == pytest.approx(0.3)
    assert result.ttft.mean == pytest.approx(prefill.result.ttft.mean + 0.3, abs=0.03)
    # Two at once share the way in.
    both = [TraceRequest(0.0, 41, 10), TraceRequest(0.0, 41, 10)]
    apart = (ReplicaKind(small(), Role.PREFILL), *kinds)
    assert served(behind_proxy(apart, transfer=costs), both).transfers.maximum > 0.55
    # What is there already is not sent again.
    same = [TraceRequest(i * 1.0, 41, 10, content=(Segment("same", 41),)) for i in range(5)]
    assert served(behind_proxy(kinds, transfer=costs), same).transferred_bytes == 40 * token


def test_who_is_lost_with_a_prompt_costs_its_computing_again() -> None:
    roles = (Role.PREFILL, Role.PREFILL, Role.DECODE)
    kinds = tuple(ReplicaKind(small(), role) for role in roles)
    costs = TransferCosts(bandwidth=1e15, latency=0.5)
    setup = behind_proxy(
        kinds, routing="round-robin", transfer=costs, failures=Failures((Failure(0.3, 0),))
    )
    result = served(setup, [TraceRequest(0.0, 41, 10)])
    assert (result.num_lost, result.num_finished) == (0, 1)
    assert result.replicas[2].fetched_tokens == 0  # it has computed the prompt itself
