"""Clients share: what each of them is served, who is next, and what is remembered."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pytest

from quire.capabilities import fairness
from quire.capabilities.fairness import PRIORITY_TOKENS, FairQueue
from quire.core.memory import PagedAllocator
from quire.core.protocol import Chunk, Outcome, Request, SchedulingPolicy, Step, Verdict
from quire.text.params import SamplingParams
from support.outcomes import answer, take_in
from support.schedulers import make_scheduler

FAIR = SchedulingPolicy.FAIR


def request(name: str, client: str, prompt: int = 4, max_tokens: int = 4, n: int = 1) -> Request:
    tokens = tuple(random.Random(name).choices(range(5000), k=prompt))
    params = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(name, tokens, params, max_tokens, seed=0, client=client)


class Shop:
    """A scheduler whose steps take a second, and account of what its clients get."""

    def __init__(
        self, blocks: int = 200, policy: SchedulingPolicy = FAIR, seqs: int = 1, tokens: int = 64
    ) -> None:
        self.scheduler = make_scheduler(PagedAllocator(blocks, 4), seqs, tokens, policy=policy)
        self.clock = 0.0
        self.served: Counter[str] = Counter()  # tokens, by client
        self.admitted: list[str] = []  # for the first time
        self.preempted = 0
        self.told: dict[int, Request] = {}  # whose a sequence is
        self._gave_way: set[str] = set()
        self._reach: dict[str, int] = defaultdict(int)  # of each prompt, by request

    @property
    def queue(self) -> FairQueue:
        accounts = self.scheduler.queue.accounts
        assert isinstance(accounts, FairQueue)
        return accounts

    def add(self, request: Request) -> None:
        self.scheduler.add(replace(request, arrival=self.clock))

    def step(self) -> Step:
        step = self.scheduler.schedule(self.clock)
        for decision in step.decisions:
            name = decision.request_id
            if decision.what in (Verdict.ADMIT, Verdict.RESUME):
                self._gave_way.discard(name)
                if name not in self.admitted:
                    self.admitted.append(name)
                    assert not self._gave_way, "who gave way comes back before anyone is let in"
            if decision.what.preempts:
                self._gave_way.add(name)
                self.preempted += 1
        self.clock += 1.0
        self.told.update({opened.seq_id: opened.request for opened in step.opened})
        self.told.update({fork.child: self.told[fork.parent] for fork in step.forked})
        result = answer(step)
        take_in(self.scheduler, step, result, self.clock)
        for chunk in step.chunks:
            outcome = result.outcomes.get(chunk.seq_id, Outcome())
            request = self.told[chunk.seq_id]
            self.served[request.client] += self._new(request.request_id, chunk)
            self.served[request.client] += len(outcome.tokens) + len(outcome.forks)
        return step

    def _new(self, name: str, chunk: Chunk) -> int:
        """Tokens of the prompt that were computed for the first time."""
        end = min(chunk.start + len(chunk.token_ids), chunk.output_start)
        known = self._reach.get(name, chunk.start)  # what it begins with was cached
        self._reach[name] = max(known, end)
        return max(0, end - known)

    def waiting(self) -> set[str]:
        """Clients of whom something waits that was never let in."""
        groups = self.scheduler.waiting
        return {group.request.client for group in groups if not group.begun}


def test_a_hog_delays_the_one_request_of_another_by_no_more_than_one_of_its_own() -> None:
    shop = Shop()
    for number in range(1000):
        shop.add(request(f"hog{number}", "hog"))
    for _ in range(30):
        shop.step()
    shop.add(request("single", "light"))
    before = len(shop.admitted)
    while "single" not in shop.admitted:
        shop.step()
    assert len(shop.admitted) - before <= 2


def plans(
    policy: SchedulingPolicy, seed: int, clients: Iterable[str]
) -> tuple[list[object], list[str], int]:
    """All that is planned for requests that come at random, in little memory.

    And who was let in, in order; and how many had to give way.
    """
    names = iter(clients)
    rng = random.Random(seed)
    shop = Shop(blocks=rng.choice([30, 60]), policy=policy, seqs=4, tokens=rng.choice([5, 40]))
    planned: list[object] = []
    while shop.clock < 40 or shop.scheduler.has_work:
        if shop.clock < 40 and rng.random() < 0.7:
            lengths = rng.randint(1, 40), rng.randint(1, 30)
            shop.add(request(str(shop.clock), next(names), *lengths, n=rng.choice([1, 1, 2])))
        plan = shop.step()
        planned.append((plan.moves, [chunk[3:6] for chunk in plan.chunks], plan.decisions))
    return planned, shop.admitted, shop.preempted


def test_one_client_is_first_come_first_served_and_so_are_as_many_as_requests() -> None:
    num_preempted = 0
    for seed in range(20):
        fcfs = plans(SchedulingPolicy.FCFS, seed, ["one"] * 40)
        assert plans(FAIR, seed, ["one"] * 40) == fcfs
        assert plans(FAIR, seed, map(str, range(40))) == fcfs
        num_preempted += fcfs[2]
    assert num_preempted > 20


@pytest.mark.parametrize("seed", range(20))
def test_who_always_waits_is_served_alike_within_the_bound(seed: int) -> None:
    """The bound is that of the docstring, and a prompt that is charged but not computed yet."""
    rng = random.Random(seed)
    seqs, longest_prompt, longest_output = rng.choice([1, 2, 4]), 40, 20
    bound = 2 * longest_prompt + seqs * longest_output
    shop = Shop(blocks=rng.choice([24, 32, 100]), seqs=seqs, tokens=rng.choice([3, 16, 64]))
    clients = {  # each with lengths of its own
        name: (rng.randint(1, longest_prompt), rng.randint(1, longest_output), rng.randint(1, 2))
        for name in "abc"
    }
    for number in range(450):
        name = "abc"[number % 3]
        prompt, output, n = clients[name]
        lengths = rng.randint(1, prompt), rng.randint(1, output)
        # Beginnings that are the same, and found in the cache.
        one = request(name + str(number % 11), name, *lengths, n=min(n, seqs))
        shop.add(replace(one, request_id=str(number)))
    differences = []
    while len(shop.waiting()) == 3:
        shop.step()
        account = {name: shop.queue._accounts[name].served for name in shop.waiting()}
        for name, served in account.items():
            assert 0 <= served - shop.served[name] <= longest_prompt, "what it got is charged"
        differences.append(max(shop.served.values()) - min(shop.served[name] for name in "abc"))
    assert max(differences) <= bound
    assert min(shop.served.values()) > 3 * bound, "too little to tell"


@pytest.mark.parametrize(("seqs", "bound"), [(4, 500), (16, 900)])
def test_long_texts_are_not_all_let_in_before_any_is_charged(seqs: int, bound: int) -> None:
    """What a step computes for whom evens out at once, not after as many long texts as fit."""
    shop, rng = Shop(blocks=8000, seqs=seqs, tokens=512), random.Random(1)
    for number in range(400):
        shop.add(request(f"short{number}", "short", rng.randint(20, 60), rng.randint(10, 30)))
    for number in range(40):
        shop.add(request(f"long{number}", "long", rng.randint(20, 60), rng.randint(400, 800)))
    most = 0
    while shop.clock < 800:
        shop.step()
        if shop.clock > 100:
            most = max(most, abs(shop.served["short"] - shop.served["long"]))
    assert most < bound


def test_service_that_is_computed_again_is_not_charged_again() -> None:
    preempted = 0
    for seed in range(30):
        shop = Shop(blocks=12, seqs=4)
        rng = random.Random(seed)
        for number in range(60):
            shop.add(request(str(number), "ab"[number % 2], rng.randint(1, 12), 20))
        while len(shop.waiting()) == 2:
            shop.step()
            for name in shop.waiting():
                assert 0 <= shop.queue._accounts[name].served - shop.served[name] <= 12
        preempted += shop.preempted
    assert preempted > 100


def test_what_is_left_of_an_aborted_prompt_is_given_back() -> None:
    """The other client has always waited, so that virtual time has not gone on without it."""
    shop = Shop(seqs=1, tokens=16)
    shop.add(request("huge", "a", prompt=400))
    for number in range(12):
        shop.add(request(f"b{number}", "b", prompt=40, max_tokens=1))
    shop.step()
    shop.add(request("a1", "a"))
    assert shop.scheduler.abort("huge")  # 16 of its tokens were computed
    while "a1" not in shop.admitted:
        shop.step()
    # After 200 tokens of the other's: so much had virtual time gone on when the huge one came in.
    assert len(shop.admitted) <= 8


def test_an_abort_gives_no_credit_for_an_idle_time() -> None:
    shop = Shop(blocks=600, seqs=9, tokens=9)
    shop.add(request("first", "hog", 4, 200, n=8))
    shop.step()
    for number in range(60):
        shop.add(request(f"hog{number}", "hog", 16, 1))
    shop.add(request("huge", "a", prompt=400))
    while shop.served["hog"] < 320:  # by 8 tokens a step, beside one of the huge prompt
        shop.step()
    assert shop.served["a"] < 50
    for number in range(40):
        shop.add(request(f"a{number}", "a", 16, 1))
    assert shop.scheduler.abort("huge") and shop.scheduler.abort("first")
    before = len(shop.admitted)
    while len(shop.admitted) < before + 20:
        shop.step()
    assert 8 <= sum(name.startswith("a") for name in shop.admitted[before:]) <= 12


def test_what_is_computed_for_nobody_is_not_charged() -> None:
    shop = Shop(seqs=2)
    group = shop.scheduler.add(request("stops", "a", max_tokens=20))
    for number in range(3):
        shop.add(request(f"b{number}", "b"))
    step = shop.scheduler.schedule(0.0)
    ahead = shop.scheduler.schedule_ahead(step, 0.0)
    seq_id = group.branches[0].seq_id
    assert ahead is not None and any(chunk.seq_id == seq_id for chunk in ahead.chunks)
    # By a stop string, which nobody knew of when it was planned.
    take_in(shop.scheduler, step, answer(step), 0.0, lambda progress: progress.seq_id == seq_id)
    served = shop.queue._accounts["a"].served
    take_in(shop.scheduler, ahead, answer(ahead), 0.0)
    assert shop.queue._accounts["a"].served == served


def test_who_was_idle_shares_from_now_on_and_has_no_credit() -> None:
    shop = Shop(seqs=2)
    for number in range(200):
        shop.add(request(f"busy{number}", "busy"))
    shop.add(request("early", "idler"))
    while len(shop.admitted) < 100:
        shop.step()
    for number in range(50):
        shop.add(request(f"idler{number}", "idler"))
    while len(shop.admitted) < 140:
        shop.step()
    later = shop.admitted[100:140]
    assert 18 <= sum(name.startswith("idler") for name in later) <= 22


def test_a_client_that_comes_and_goes_does_not_shake_off_its_debt() -> None:
    shop = Shop(seqs=2)
    for number in range(150):
        shop.add(request(f"plain{number}", "plain", 4, 4))
    shop.add(request("long", "debtor", 400, 100))
    shop.step()
    assert "long" in shop.admitted
    while shop.scheduler.group("long") is not None:
        shop.step()
    shop.add(request("again", "debtor"))
    while "again" not in shop.admitted:
        shop.step()
    assert shop.served["plain"] >= 490 - 2 * fairness._SOON


def test_priority_goes_first_but_only_so_far() -> None:
    shop = Shop(blocks=700, seqs=1, tokens=4096)
    per_request = 2500
    for number in range(20):
        shop.add(request(f"plain{number}", "plain", per_request - 1, 1))
        shop.add(replace(request(f"urgent{number}", "urgent", per_request - 1, 1), priority=-1))
    while shop.scheduler.has_work:
        shop.step()
    ahead = PRIORITY_TOKENS // per_request
    assert all(name.startswith("urgent") for name in shop.admitted[:ahead])
    assert sum(name.startswith("plain") for name in shop.admitted[ahead : ahead + 12]) in (5, 6, 7)


def test_nobody_starves_behind_ever_new_clients_with_urgent_requests() -> None:
    shop = Shop(seqs=1, tokens=256, blocks=600)
    shop.add(request("patient", "patient"))
    number = 0
    while "patient" not in shop.admitted:
        while len(shop.scheduler.waiting) < 4:
            number += 1
            shop.add(replace(request(f"new{number}", f"new{number}", 200, 1), priority=-1))
        shop.step()
        assert number * 200 < 5 * PRIORITY_TOKENS, "the patient one starves"
    assert number > 50, "urgent ones go first"


def test_what_is_remembered_of_clients_is_bounded_and_nothing_in_the_end() -> None:
    shop = Shop(seqs=1)
    for number in range(50):  # somebody always waits
        shop.add(request(f"hog{number}", "hog", 100, 100))
    queue = shop.queue
    for number in range(20_000):  # served by nobody, but each one's debt would be kept
        queue.serve([(request("r", f"client{number}"), 50)])
    assert len(queue._accounts) <= 2002
    assert queue._accounts["hog"].waiting
    for number in range(50):
        shop.scheduler.abort(f"hog{number}")
    for number in range(3):
        shop.add(request(f"last{number}", "hog"))
    shop.step()
    assert queue._running == {"hog": 1} and shop.scheduler.abort("last0")
    while shop.scheduler.has_work:
        shop.step()
    assert not queue._accounts and not queue.num_clients and not queue._running
    assert queue.first() is None
