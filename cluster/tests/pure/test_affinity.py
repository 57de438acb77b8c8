"""Which replica gets a request."""

from __future__ import annotations

import pytest

from quire_cluster.routing import prefix_of
from quire_cluster.rules import Affinity, Prefix, ReplicaLoad, ReplicaReport, RoundRobin

IDLE = ReplicaLoad(0, ReplicaReport(1, capacity=100_000, free=100_000))


def sent(affinity: Affinity, prefix: Prefix, **loads: ReplicaLoad) -> str:
    """Who gets a request that is answered before the next one comes."""
    name = affinity.choose("request", prefix, loads)[0]
    affinity.done(name, "request")
    return name


def prompt(name: str, words: int = 400) -> Prefix:
    return prefix_of({"prompt": f"{name} " * words}, "")


def test_a_prefix_stays_where_it_was_computed() -> None:
    affinity, loads = Affinity(), {"a": IDLE, "b": IDLE}
    first = [sent(affinity, prompt(f"p{i}"), **loads) for i in range(8)]
    assert sorted(first) == ["a"] * 4 + ["b"] * 4  # new ones spread
    for _ in range(3):
        assert [sent(affinity, prompt(f"p{i}"), **loads) for i in range(8)] == first


@pytest.mark.parametrize(
    "busy",
    [
        IDLE._replace(running=20),
        ReplicaLoad(0, ReplicaReport(1, 100_000, 100_000, backlog=5000)),
        ReplicaLoad(0, ReplicaReport(1, 100_000, 100_000, wait=2.0, rate=1000.0)),
        ReplicaLoad(0, ReplicaReport(1, 100_000, 0)),
    ],
    ids=["many run", "prompts to compute", "a line", "no blocks"],
)
def test_load_outweighs_a_prefix(busy: ReplicaLoad) -> None:
    affinity = Affinity()
    sent(affinity, prompt("p"), a=IDLE)
    assert sent(affinity, prompt("p"), a=IDLE, b=IDLE) == "a"
    assert sent(affinity, prompt("p"), a=IDLE._replace(running=3), b=IDLE) == "a"
    assert affinity.choose("x", prompt("p"), {"a": busy, "b": IDLE}) == ["b", "a"]


def test_what_was_sent_counts_until_the_replica_tells_of_it_or_has_answered() -> None:
    def choose(request: str, prefix: Prefix, a: ReplicaLoad = IDLE) -> str:
        return affinity.choose(request, prefix, {"a": a, "b": IDLE})[0]

    affinity = Affinity()
    affinity.choose("long", prompt("p", 4000), {"a": IDLE})
    assert [choose(f"x{i}", prompt(f"x{i}", 500)) for i in range(3)] == ["b", "b", "b"]
    assert choose("q", prompt("q", 2000), ReplicaLoad(0, ReplicaReport(2, 100_000, 100_000))) == "a"
    affinity = Affinity()
    affinity.choose("long", prompt("p", 4000), {"a": IDLE})
    assert choose("short", prompt("q")) == "b"
    affinity.done("a", "long")
    assert choose("next", prompt("r")) == "a"


def test_no_more_is_remembered_than_a_pool_holds() -> None:
    small = ReplicaLoad(0, ReplicaReport(1, capacity=32 * 1100, free=10**9))
    affinity, kept = Affinity(), prompt("kept", 200)
    sent(affinity, kept, a=small)
    for i in range(100):
        sent(affinity, prompt(f"p{i}", 800), a=small)
    assert affinity.num_remembered == 1100
    assert sent(affinity, kept, a=IDLE, b=IDLE) == "b"  # which has met less


def test_beginnings_are_remembered_longest() -> None:
    small = ReplicaLoad(0, ReplicaReport(1, capacity=32 * 1100, free=10**9))
    affinity, long = Affinity(), prompt("long", 20_000)  # 800 pieces
    sent(affinity, long, a=small)
    sent(affinity, prefix_of({"prompt": "y" * 128 * 700}, ""), a=small)
    beginning = Prefix(long.pieces[:300], 300 * 32)
    assert sent(affinity, beginning, a=small._replace(running=40), b=small) == "a"


def test_new_prompts_spread_however_many_were_met_before() -> None:
    """What a replica remembers saturates: that may not decide."""
    full = ReplicaLoad(0, ReplicaReport(1, capacity=32 * 1100, free=32 * 1100))
    loads = dict.fromkeys(("a", "b", "c", "d"), full)
    affinity = Affinity()
    for i in range(1000):  # ten times what all of them remember
        sent(affinity, prompt(f"old{i}", 3600), **loads)
    first = [sent(affinity, prompt(f"new{i}"), **loads) for i in range(400)]
    assert all(80 <= first.count(name) <= 120 for name in loads)
    turns = [sent(affinity, prompt(f"talk{i}", 500), **loads) for i in range(22)]
    assert [sent(affinity, prompt(f"talk{i}", 600), **loads) for i in range(22)] == turns


class Pool:
    """Of a replica: what it keeps, the least recently used given up first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pieces: dict[bytes, None] = {}

    def serve(self, prefix: Prefix) -> int:
        """How many pieces of the prompt were there."""
        found = 0
        while found < len(prefix.pieces) and prefix.pieces[found] in self.pieces:
            found += 1
        for piece in reversed(prefix.pieces):
            self.pieces.pop(piece, None)
            self.pieces[piece] = None
        while len(self.pieces) > self.most:
            del self.pieces[next(iter(self.pieces))]
        return found


def talk(turns: range, conversations: int, system: str) -> tuple[float, dict[str, Pool]]:
    """The share of later turns' prompts that is found, and the pools of four idle replicas."""
    affinity, pools = Affinity(), {name: Pool(1600) for name in "abcd"}
    loads = dict.fromkeys(
        pools, ReplicaLoad(0, ReplicaReport(1, capacity=32 * 1600, free=32 * 1600))
    )
    found = total = 0
    for turn in turns:
        for number in range(conversations):
            text = system + f"{number:4}" * 300 * (turn + 1)
            prefix = prefix_of({"prompt": text}, "")
            count = pools[sent(affinity, prefix, **loads)].serve(prefix)
            found, total = found + (turn > 0) * count, total + (turn > 0) * len(prefix.pieces)
    return found / total, pools


def test_what_all_prompts_begin_with_does_not_keep_them_in_one_pool() -> None:
    """It is paid for elsewhere once it has cost as much in the pool that is full."""
    system = "s" * 4 * 512
    share, pools = talk(range(5), 20, system)  # one pool holds them
    assert share > 0.75 and sum(bool(pool.pieces) for pool in pools.values()) == 1
    share, pools = talk(range(5), 80, system)  # three do
    assert share > 0.65 and sum(bool(pool.pieces) for pool in pools.values()) >= 3


@pytest.mark.parametrize("prefix", [Prefix(), prefix_of({"prompt": "Hi!"}, "")])
def test_what_has_no_pieces_spreads(prefix: Prefix) -> None:
    """Short prompts, and sessions, which stay where they were opened."""
    affinity, loads = Affinity(), dict.fromkeys(("a", "b", "c", "d"), IDLE)
    chosen = [sent(affinity, prefix, **loads) for _ in range(256)]
    assert {name: chosen.count(name) for name in loads} == dict.fromkeys("abcd", 64)
    sent(affinity, prompt("long", 10_000), **loads)
    chosen = [sent(affinity, prefix, **loads) for _ in range(256)]
    assert all(48 <= chosen.count(name) <= 80 for name in loads)


def test_who_joins_is_not_given_all_that_comes() -> None:
    affinity, loads = Affinity(), dict.fromkeys(("a", "b", "c"), IDLE)
    for i in range(400):
        sent(affinity, prompt(f"p{i}"), **loads)
    chosen = [sent(affinity, prompt(f"q{i}"), **loads, d=IDLE) for i in range(64)]
    assert 16 <= chosen.count("d") <= 40


def test_no_name_decides() -> None:
    """Routers that have seen nothing yet do not all begin with the same replica."""
    loads = dict.fromkeys(("a", "b", "c", "d"), IDLE)
    first = [Affinity().choose(f"r{i}", Prefix(), loads)[0] for i in range(400)]
    assert all(60 <= first.count(name) <= 140 for name in loads)


def test_who_is_gone_is_forgotten() -> None:
    affinity = Affinity()
    sent(affinity, prompt("p"), a=IDLE)
    assert sent(affinity, prompt("p"), b=IDLE) == "b"
    affinity.done("a", "late")
    assert sent(affinity, prompt("p"), a=IDLE, b=IDLE) == "b"
    assert affinity.choose("x", prompt("p"), {}) == []


def test_a_beginning_is_worth_what_it_saves() -> None:
    affinity = Affinity()
    sent(affinity, prefix_of({"prompt": "x" * 8000}, ""), a=IDLE)
    other = prefix_of({"prompt": "x" * 800 + "y" * 8000}, "")
    running = {few: affinity.choose("x", other, {"a": IDLE._replace(running=few), "b": IDLE})
               for few in (2, 8)}  # fmt: skip
    assert running == {2: ["a", "b"], 8: ["b", "a"]}  # 192 tokens against 64, or 256


def test_round_robin() -> None:
    turns = RoundRobin()
    assert [turns.choose("abc") for _ in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip
    assert turns.choose("ac") == ["c", "a"]
    assert turns.choose("") == []
