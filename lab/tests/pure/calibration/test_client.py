"""Costs of a server from what a client sees, where it is known what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from quire.core.errors import ConfigError
from quire.engine.work import Work
from quire_lab.calibration.client.probes import (
    ClientProbe,
    Room,
    Stream,
    plan,
    prefill,
    timings,
    typical,
)
from quire_lab.calibration.client.served import fit_server
from quire_lab.calibration.fit import Timing
from quire_lab.simulation.calibrated import CalibratedCosts
from quire_lab.simulation.cost_model import decoding

TRUE = CalibratedCosts(
    knots=(1, 16, 512, 2048),
    token_seconds=(5e-3, 6e-3, 20e-3, 65e-3),  # straight from 512 on: 62 would be from 16 on
    per_seq=4e-5,
    context_knots=(0,),
    per_context=(2e-7,),
    per_prefill_pair=3e-9,
    per_draft=0.0,
    per_draft_pair=0.0,
    per_wake=0.0,
    per_woken_token=0.0,
    per_copied_block=0.0,
    per_swapped_block=0.0,
)
TRIP = 7e-3
ROOM = Room(longest=8192, pool=131_072, most_seqs=64, budget=2048)


class VirtualServer:
    """Steps that cost what ``TRUE`` says: all who decode, and as much of prompts as there is room.

    late: seconds between tokens of one step, as they reach the client.
    """

    def __init__(self, budget: int, late: float = 0.0, costs: CalibratedCosts = TRUE) -> None:
        self._budget, self._late, self._costs = budget, late, costs

    def answers(self, probe: ClientProbe) -> list[Stream]:
        left = [probe.prompt_tokens] * probe.users + [probe.newcomer] * bool(probe.newcomer)
        times: list[list[float]] = [[] for _ in left]
        sent, now = [0.0] * len(left), TRIP / 2
        while any(len(own) < probe.output_tokens for own in times[: probe.users]):
            here = [i for i in range(len(left)) if i < probe.users or self._comes(times, probe)]
            for i in here[probe.users :]:
                sent[i] = sent[i] or now + TRIP / 4
            now += self._costs.seconds(self._step(here, left, times, probe, sent, now))
            for i in self._done:
                times[i].append(now + TRIP / 2 + i * self._late)
        prompts = [probe.prompt_tokens] * probe.users + [probe.newcomer]
        told = zip(sent, times, prompts, strict=False)
        return [Stream(at, own, tokens) for at, own, tokens in told]

    def _comes(self, times: list[list[float]], probe: ClientProbe) -> bool:
        return min(len(own) for own in times[: probe.users]) > 8

    def _step(
        self,
        here: list[int],
        left: list[int],
        times: list[list[float]],
        probe: ClientProbe,
        sent: list[float],
        now: float,
    ) -> Work:
        wanted = probe.output_tokens
        going = [i for i in here if left[i] == 0 and len(times[i]) < wanted and sent[i] <= now]
        prompts = [probe.prompt_tokens if i < probe.users else probe.newcomer for i in here]
        seqs, context = len(going), sum(prompts[i] + len(times[i]) for i in going)
        room, tokens, pairs, samples = self._budget - seqs, 0, 0.0, seqs
        self._done = list(going)
        for i in here:
            count = min(left[i], room) if sent[i] <= now else 0
            if not count:
                continue
            start = prompts[i] - left[i]
            left[i], room = left[i] - count, room - count
            if count == 1:
                seqs, context = seqs + 1, context + start + 1
            else:
                tokens, pairs = tokens + count, pairs + count * start + count * (count + 1) / 2
            if not left[i]:
                samples += 1
                self._done.append(i)
        return Work(tokens, pairs, tokens, seqs, context, samples)


def measured(
    budget: int = ROOM.budget,
    late: float = 0.0,
    room: Room = ROOM,
    costs: CalibratedCosts = TRUE,
) -> list[Timing]:
    server, found = VirtualServer(budget, late, costs), list[Timing]()
    for probe in plan(room):
        found += timings(probe, server.answers(probe), room)
    return found


def steps() -> Iterator[Work]:
    for seqs in (1, 3, 20, 64):
        yield decoding(seqs, seqs * 900)
    yield from prefill(1500, 2048)
    yield from prefill(7000, 2048, 16, 16 * 300)


@pytest.mark.parametrize("late", [0.0, 2e-5])
def test_a_client_finds_the_costs_that_made_its_timings(late: float) -> None:
    fitted, median_error, total_error = fit_server(measured(late=late))
    near = 0.002 if not late else 0.02
    assert median_error < near and abs(total_error) < near
    assert fitted.trip_seconds == pytest.approx(TRIP, rel=0.02 if not late else 0.1)
    for work in steps():
        assert fitted.costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=2 * near)


def test_timings_name_the_very_steps() -> None:
    probes = plan(ROOM)
    kinds = {(probe.users > 1, probe.newcomer > 0) for probe in probes}
    assert len(kinds) == 4
    for one in measured():
        expected = sum(map(TRUE.seconds, one.works)) + one.trips * TRIP
        assert one.seconds == pytest.approx(expected, rel=5e-3), one.works[:2]


def test_a_server_that_computes_other_steps_than_it_is_taken_for_shows_in_the_error() -> None:
    *_, total_error = fit_server(measured(budget=256))
    assert abs(total_error) > 0.02


def test_probes_keep_within_their_room() -> None:
    small = Room(longest=200, pool=1000, most_seqs=2, budget=64)
    for probe in plan(small):
        assert probe.users + bool(probe.newcomer) <= 3
        assert probe.prompt_tokens + probe.output_tokens <= 200
        assert probe.users * (probe.prompt_tokens + 32) <= 1000
    assert plan(Room(32, 32, 1, 64)) == []


def test_too_few_timings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"7 timings are too few .* raise time_limit"):
        fit_server(measured()[:7])


def test_a_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    assert list(prefill(5, 3)) == [Work(3, 6, 3, 0, 0, 0), Work(2, 9, 5, 0, 0, 1)]
    beside = list(prefill(4, 4, seqs=1, context=10))
    assert beside == [Work(3, 6, 3, 1, 10, 1), Work(0, 0, 0, 2, 14, 2)]


def test_what_was_held_up_or_came_all_at_once_is_left_out() -> None:
    def took(seconds: float, steps: int = 2) -> Timing:
        return Timing((Work(1),) * steps, seconds)

    bunched, usual, held_up = took(0.1), took(1.6, 3), took(1.2)
    assert typical([held_up, bunched, usual]) is usual
    assert typical([held_up, usual]) is usual and typical([held_up]) is held_up


def test_the_largest_prompt_is_never_held_out() -> None:
    room = ROOM._replace(budget=8192)
    found = measured(room.budget, room=room)
    for first in range(4):
        fitted, *_ = fit_server(found[first:])
        assert fitted.costs.knots[-1] == 4096


def test_no_bend_is_sought_beyond_512_tokens() -> None:
    """There, whole prompts cannot tell products from attention, and what is found goes on."""
    bent = replace(TRUE, knots=(1, 16, 512, 1024, 2048), token_seconds=(5e-3, 6e-3, 2e-2, 9e-2, 1))
    costs = fit_server(measured(costs=bent))[0].costs
    short, long, longer = (costs.seconds(Work(n, 0, n)) for n in (640, 1280, 1920))
    assert longer - long == pytest.approx(long - short, rel=1e-6)


def test_what_prompts_a_little_longer_than_others_take_is_no_slope() -> None:
    """The longest steps are of 512 tokens and a few who decode: what a knot between them would find
    is chance, and it would go on to steps of thousands of tokens."""
    random, room = Random(1), ROOM._replace(longest=600)
    noisy = [one._replace(seconds=one.seconds * random.uniform(0.97, 1.03)) for one in measured(
        room=room)]  # fmt: skip
    costs = fit_server(noisy)[0].costs
    assert costs.knots[-1] in range(512, 600) and costs.knots[-2] < 400
    assert costs.seconds(Work(2048, 0, 2048)) == pytest.approx(TRUE.seconds(Work(2048)), rel=0.2)


def test_what_bends_in_long_prompts_is_attention() -> None:
    room, costs = ROOM._replace(longest=3000, budget=8192), replace(TRUE, per_prefill_pair=3e-8)
    fitted, *_ = fit_server(measured(room.budget, room=room, costs=costs))
    (longer,) = prefill(8000, 8192)
    assert fitted.costs.seconds(longer) == pytest.approx(costs.seconds(longer), rel=0.02)
