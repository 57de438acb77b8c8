"""What is drafted for whom: by what steps take, and by how often drafts have been right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.capabilities.speculation import Proposal, Speculation
from quire.capabilities.speculation.acceptance import Acceptance
from quire.capabilities.speculation.costs import StepCosts
from quire.capabilities.speculation.plan import Choice, choose, plan
from quire.capabilities.speculation.proposal import DraftModelDrafter
from quire.core.memory import PagedAllocator
from quire.core.protocol import TO_DRAFT, Outcome, Request, Sample, StepResult, Verdict, confirmed
from quire.core.scheduling import BatchLimits, Scheduler
from quire.core.scheduling.sequence import Sequence as Text
from quire.text.params import SamplingParams
from support.outcomes import take_in

RIGHT, WRONG = 7, 8
Seconds = Callable[[int, int], float]
"""(rows, passes of a draft model) -> seconds"""


class Saying:
    """A drafter that says of each request what it is told to, and notes who is asked about."""

    def __init__(self, says: Mapping[str, int] | int, token: int = RIGHT, name: str = "says"):
        self.says, self.token, self.name = says, token, name
        self.asked: list[int] = []
        self.closed: list[int] = []
        self.num_bytes = 10

    def propose(self, request: Request, sequence: Text, most: int) -> Proposal | None:
        self.asked.append(sequence.seq_id)
        says = self.says if isinstance(self.says, int) else self.says[request.request_id]
        count = min(most, says)
        return Proposal([self.token] * count, [1.0] * count, 20) if count else None

    def close(self, seq_id: int) -> None:
        self.closed.append(seq_id)


class Run:
    """A scheduler whose model only ever says 7, in steps that take what they are said to."""

    def __init__(self, speculation: Speculation, seconds: Seconds, requests: int = 1, n: int = 1):
        self.speculation, self.seconds = speculation, seconds
        self.scheduler = Scheduler(PagedAllocator(40_960, 4), BatchLimits(256, 4096))
        self.groups = [self.add(str(number), n) for number in range(requests)]
        self.decisions: list[str] = []
        self.drafts_right = True  # of the draft model

    def add(self, name: str, n: int = 1, tokens: int = 8000) -> object:
        params = SamplingParams(max_tokens=tokens, n=n)
        return self.scheduler.add(Request(name, (1, 2, 3), params, tokens, seed=0))

    def step(self) -> list[int]:
        """How many drafts each of the step's chunks has."""
        self.speculation.propose(self.scheduler)
        step = self.scheduler.schedule(0.0)
        self.decisions += [d.why for d in step.decisions if d.what is Verdict.DRAFT]
        outcomes = {chunk.seq_id: self.answer(chunk) for chunk in step.chunks if chunk.readout}
        rows = sum(chunk.readout.rows for chunk in step.chunks if chunk.readout)
        made = [len(chunk.drafts) for chunk in step.chunks if TO_DRAFT in chunk.drafts]
        self.speculation.observe(step, outcomes, self.seconds(rows, max(made, default=0)))
        take_in(self.scheduler, step, StepResult(outcomes), 0.0)
        return [len(chunk.drafts) for chunk in step.chunks]

    def answer(self, chunk: object) -> Outcome:
        drafts, draws = chunk.drafts, chunk.readout.draws  # type: ignore[attr-defined]
        made = RIGHT if self.drafts_right else WRONG
        drafts = [made if draft == TO_DRAFT else draft for draft in drafts]
        tokens = confirmed([Sample(RIGHT)] * (1 + len(drafts)), drafts)
        return Outcome(tokens, [Sample(RIGHT)] * (draws - 1))

    def steps(self, count: int) -> list[list[int]]:
        return [self.step() for _ in range(count)]


def by_memory(rows: int, passes: int = 0) -> float:
    """A machine that waits for its memory: rows cost next to nothing."""
    return 0.01 * (1 + 0.02 * rows) + 0.002 * passes


def by_arithmetic(rows: int, passes: int = 0) -> float:
    """A batch that is bound by arithmetic: each row costs as much as the last."""
    return 0.01 * rows + 0.002 * passes


def test_one_alone_is_drafted_for_as_far_as_may_be() -> None:
    run = Run(Speculation([Saying(16)], most=5), by_memory)
    drafts = run.steps(40)
    assert drafts[0] == drafts[1] == [0]  # nothing has been measured
    assert drafts[-1] == [5]
    assert run.scheduler.running[0].branches[0].num_output_tokens > 150


@pytest.mark.parametrize(("requests", "n"), [(1, 1), (8, 1), (64, 1), (4, 16)])
def test_where_arithmetic_binds_nobody_is(requests: int, n: int) -> None:
    """However right they would be: a row that is worth one token costs as much as one."""
    run = Run(Speculation([Saying(16)], most=16), by_arithmetic, requests, n)
    drafts = run.steps(60)
    assert max(map(max, drafts[-40:])) == 0


def test_who_lies_is_no_longer_listened_to() -> None:
    liar = Saying(16, WRONG)
    run = Run(Speculation([liar], most=8), by_memory)
    drafts = [step[0] for step in run.steps(200)]
    assert sum(drafts[:20]) > 0 and sum(drafts[100:]) == 0
    liar.token = RIGHT  # seen without a single draft
    drafts = [step[0] for step in run.steps(100)]
    assert drafts[0] == 0 and drafts[-1] == 8


def test_now_and_then_a_step_has_none_to_see_what_that_takes() -> None:
    """A machine that has become slow is no reason to go on drafting, nor is one that was."""
    run = Run(Speculation([Saying(16)], most=4), by_memory)
    drafts = [step[0] for step in run.steps(400)]
    assert 1 <= drafts[10:].count(0) <= 2
    run.seconds = lambda rows, passes: 0.004 * rows - 0.001
    run.steps(600)
    assert sum(step[0] for step in run.steps(50)) == 0


def test_each_sequence_by_its_own_acceptance() -> None:
    class Mixed(Saying):
        def propose(self, request: Request, sequence: Text, most: int) -> Proposal | None:
            self.token = RIGHT if int(request.request_id) % 2 else WRONG
            return super().propose(request, sequence, most)

    run = Run(Speculation([Mixed(8)], most=8), lambda rows, _: 0.01 * (1 + 0.06 * rows), 6)
    assert run.steps(150)[-1] == [0, 8, 0, 8, 0, 8]


def test_looking_costs_the_same_however_many_there_are() -> None:
    """Sequences about which there is nothing to say are looked at in turn."""
    drafter = Saying({str(i): 8 if i < 3 else 0 for i in range(40)})
    run = Run(Speculation([drafter], most=8), by_memory, 40)
    run.steps(30)
    drafter.asked.clear()
    drafts = run.step()
    assert drafts[:3] == [8, 8, 8] and not any(drafts[3:])
    assert len(drafter.asked) == 3 + 8
    run.steps(4)
    assert len(set(drafter.asked)) == 40


def test_short_steps_are_seldom_held_up_by_looking_for_nothing() -> None:
    drafter = Saying(0)
    run = Run(Speculation([drafter], most=8), lambda rows, passes: 0.0002 * (1 + 0.02 * rows))
    run.steps(20)
    drafter.asked.clear()
    run.steps(90)
    assert len(drafter.asked) == 10
    drafter.says = 8
    assert [step[0] for step in run.steps(30)][-15:] == [8] * 15


def test_the_first_who_is_confident_is_heard() -> None:
    first, second = Saying(2, name="first"), Saying(16, WRONG, name="second")
    run = Run(Speculation([first, second], most=8), by_memory)
    assert run.steps(30)[-1] == [2]
    second.asked.clear()
    run.steps(5)
    assert not second.asked
    first.says = 0
    run.step()
    assert second.asked


def test_a_drafter_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Saying):
        def propose(self, request: Request, sequence: Text, most: int) -> Proposal | None:
            super().propose(request, sequence, most)
            raise MemoryError

    failing, other = Failing(8), Saying(3)
    run = Run(Speculation([failing, other], most=8), by_memory)
    assert run.steps(20)[-1] == [3]
    assert len(failing.asked) == 1
    assert caplog.text.count("the drafter says failed, and is not asked again") == 1


def test_a_model_drafts_as_long_as_its_passes_pay() -> None:
    model = Saying(16, TO_DRAFT)
    run = Run(Speculation([model], most=16), lambda rows, passes: by_memory(rows) + 0.001 * passes)
    many = run.steps(60)[-1][0]
    run = Run(Speculation([model], most=16), lambda rows, passes: by_memory(rows) + 0.0085 * passes)
    few = run.steps(60)[-1][0]
    run = Run(Speculation([model], most=16), lambda rows, passes: by_memory(rows) + 0.02 * passes)
    tried = [step[0] for step in run.steps(1500)]
    assert many > few >= 1
    assert 3 <= sum(map(bool, tried[20:])) <= 12  # now and then, to see


def test_a_model_whose_first_pass_is_dear_is_given_several() -> None:
    """Two do not pay either, so that nobody would get to eight by way of them."""

    def seconds(rows: int, passes: int) -> float:
        return by_memory(rows) * (1 + 4 * (passes > 0) + 0.03 * passes)

    run = Run(Speculation([Saying(16, TO_DRAFT)], most=16), seconds)
    drafts = [step[0] for step in run.steps(1000)]
    assert sum(drafts[:120]) <= 8 and sum(drafts[-100:]) > 1000


def test_a_model_that_is_never_right_is_given_up() -> None:
    run = Run(Speculation([Saying(16, TO_DRAFT)], most=16), by_memory)
    run.drafts_right = False
    drafts = [step[0] for step in run.steps(1000)]
    lost = sum(by_memory(1 + count, count) - by_memory(1) for count in drafts[100:])
    assert sum(drafts[:10]) > 0 and 0 < lost < 0.012 * 900 * by_memory(1)


def test_what_prompts_take_is_not_what_a_trial_of_a_model_loses() -> None:
    prompts: list[int] = []

    def seconds(rows: int, passes: int) -> float:
        come = len(run.groups) > 1 and not prompts
        prompts.extend([passes] if come else [])
        return 10.0 if come else by_memory(rows) + 0.02 * passes

    run = Run(Speculation([Saying(16, TO_DRAFT)], most=16), lambda *_: 0.01)
    run.seconds = seconds
    while not (run.step()[0] and run.speculation._trial and run.speculation._trial_steps):
        pass
    run.groups.append(run.add("1", tokens=1))
    run.step()
    assert prompts[0] > 0, "it came in the midst of a trial"
    tried = [step[0] for step in run.steps(1500)]
    assert any(tried[100:])


def test_a_model_is_weighed_now_and_then_where_steps_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But at once where somebody comes or goes."""
    weighed: list[int] = []

    def weigh(*given: Any) -> Choice | None:
        weighed.append(given[2])
        return plan(*given)

    monkeypatch.setattr("quire.capabilities.speculation.speculation.plan", weigh)
    run = Run(Speculation([DraftModelDrafter()], most=16), lambda *of: 0.05 * by_memory(*of))
    run.steps(100)
    weighed.clear()
    drafts = [step[0] for step in run.steps(128)]
    assert drafts.count(0) == 4 and len(weighed) < 16, "two in 64 are without"
    run.add("1")
    run.step()
    assert weighed[-1] == 1 and [len(one) for one in run.steps(8)] == [2] * 8
    assert weighed[-1] == 2
    run.scheduler.abort("0")
    run.step()
    assert weighed[-1] == 1
    run.drafts_right = False
    drafts = [step[0] for step in run.steps(200)]
    assert sum(map(bool, drafts[60:])) < 20


def test_only_those_with_a_prediction_where_nobody_else_is_drafted_for() -> None:
    drafter = Saying(8)
    run = Run(Speculation([drafter], most=8, predicted_only=True), by_memory, 2)
    params = SamplingParams(max_tokens=100)
    run.scheduler.add(Request("p", (1,), params, 100, seed=0, prediction=(7, 7)))
    assert run.steps(10)[-1] == [0, 0, 8]
    assert len(set(drafter.asked)) == 1


def test_what_is_forced_comes_first() -> None:
    speculation = Speculation([Saying(8, WRONG)], most=4)
    run = Run(speculation, by_memory)
    run.steps(3)
    answer = run.answer
    run.answer = lambda chunk: answer(chunk)._replace(forced=[RIGHT] * 9)  # type: ignore[method-assign]
    assert run.steps(20)[-1] == [4]


def test_decisions_say_why_once() -> None:
    drafter = Saying(8)
    run = Run(Speculation([drafter], most=8), lambda rows, _: 0.01 * (1 + 0.2 * rows))
    run.steps(100)
    drafter.token = WRONG
    run.steps(100)
    begun, ended = run.decisions[0], run.decisions[-1]
    assert "drafts by says" in begun and "times as fast" in begun and "ms in place of" in begun
    assert ended.startswith("no drafts: the first one of says is right with ")
    assert len(run.decisions) <= 4
    assert run.scheduler.stats.decisions["draft"] == len(run.decisions)


def test_what_has_ended_is_forgotten() -> None:
    drafter = Saying(8)
    run = Run(Speculation([drafter], most=8), by_memory)
    run.steps(10)
    run.scheduler.abort("0")
    run.add("1")
    run.steps(3)
    assert drafter.closed == [0]
    speculation = run.speculation
    assert set(speculation._acceptance._of) == set(speculation._decisions._since) == {1}
    assert speculation.num_bytes == 10


def test_running_ahead_is_for_when_there_is_nothing_to_draft() -> None:
    drafter = Saying(0)
    run = Run(Speculation([drafter], most=8), by_memory)
    run.steps(10)
    waits = [run.speculation.waits(run.scheduler) for _ in range(16)]
    assert waits == [False] * 15 + [True]
    drafter.says = 8
    run.steps(3)
    assert run.speculation.waits(run.scheduler)


# -- the parts ---------------------------------------------------------------------------------


@st.composite
def offers(draw: st.DrawFn) -> list[list[float]]:
    parts = st.lists(st.floats(0.05, 1.0), min_size=0, max_size=4)
    found = []
    for own in draw(st.lists(parts, max_size=4)):
        together, chances = 1.0, []
        for part in own:
            together *= part
            if together > 0.05:  # else nobody looks at it
                chances.append(together)
        found.append(chances)
    return found


@given(offers(), st.floats(0.0, 1.0), st.integers(0, 8))
@settings(deadline=None, max_examples=150)
def test_what_is_chosen_is_the_fastest_of_all_there_is(
    chances: list[list[float]], slope: float, others: int
) -> None:
    costs, rows = StepCosts(), len(chances) + others + 1
    for count in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(3):
            costs.observe(count, 1.0 + slope * count)
    plain = costs.seconds(rows)

    def rate(counts: Sequence[int]) -> float:
        tokens = rows + sum(sum(own[:n]) for own, n in zip(chances, counts, strict=True))
        return tokens / costs.seconds(rows + sum(counts))

    best = max(map(rate, product(*(range(len(own) + 1) for own in chances))))
    choice = choose(costs, plain, rows, chances)
    if choice is None:
        assert best <= rows / plain * 1.03
    else:
        assert choice.tokens / choice.seconds == pytest.approx(best, rel=0.03)
        assert choice.gain == pytest.approx(choice.tokens / choice.seconds * plain / rows)


def test_chances_follow_what_has_become_of_drafts() -> None:
    acceptance, proposal = Acceptance(2), Proposal([1, 2, 3], [1.0, 1.0, 0.5], evidence=2)
    before = acceptance.chances(0, 1, proposal)
    assert before[0] > before[1] > before[2] > 0
    for _ in range(50):
        acceptance.observe(0, 1, proposal, tried=2, right=2)
    after = acceptance.chances(0, 1, proposal)
    assert after[1] > 0.8 and 0.4 < after[2] < 0.5  # its drafter is in two minds
    assert acceptance.chances(0, 0, proposal) == pytest.approx(before)  # another drafter
    assert before[1] < acceptance.chances(1, 1, proposal)[1] < after[1]  # another sequence
    for _ in range(50):
        acceptance.observe(1, 1, proposal, tried=3, right=0)
    assert acceptance.chances(1, 1, proposal)[0] < 0.15
    assert acceptance.chances(0, 1, proposal)[0] > 0.7
