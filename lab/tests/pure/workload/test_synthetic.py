from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest
from quire_lab.workload import DATASETS, PRESETS, Lengths, Library, Synthetic, Trace, read_sharegpt

FIXED = Lengths("fixed", 10)


def draw(**options: Any) -> list[TraceRequest]:
    facts: dict[str, Any] = {"num_requests": 4000, "input_lengths": FIXED, "output_lengths": FIXED}
    return list(Synthetic(**{**facts, **options}))


@pytest.mark.parametrize("burstiness", [1.0, 0.25, 4.0])
def test_arrivals_have_the_rate_and_the_spread_that_was_asked_for(burstiness: float) -> None:
    times = [request.arrival for request in draw(rate=5.0, burstiness=burstiness)]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.1)


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_have_the_means_of_the_paper(name: str) -> None:
    inputs, outputs = DATASETS[name]
    requests = draw(input_lengths=inputs, output_lengths=outputs, num_requests=20_000)
    means = {"sharegpt": (161, 338), "alpaca": (19, 58)}[name]
    assert fmean(r.prompt_tokens for r in requests) == pytest.approx(means[0], rel=0.05)
    assert fmean(r.output_tokens for r in requests) == pytest.approx(means[1], rel=0.05)


@pytest.mark.parametrize(
    ("text", "least", "most", "mean"),
    [("7", 7, 7, 7), ("625-1025", 625, 1025, 825), ("normal:100:10", 50, 150, 100),
     ("lognormal:100:0.5", 10, 900, 100)],
)  # fmt: skip
def test_lengths_as_they_are_written(text: str, least: int, most: int, mean: float) -> None:
    lengths = [request.prompt_tokens for request in draw(input_lengths=Lengths.parse(text))]
    assert least <= min(lengths) <= max(lengths) <= most
    assert fmean(lengths) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("text", ["0", "-3", "9-3", "0-5", "normal:5", "x", "99999999999", ""])
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="lengths"):
        Lengths.parse(text)


def test_the_same_seed_draws_the_same_workload() -> None:
    options: dict[str, Any] = {"rate": 3.0, "turns": 3, "num_requests": 100}
    options["input_lengths"] = DATASETS["sharegpt"][0]
    assert draw(**options) == draw(**options)
    assert draw(**options) != draw(**options, seed=1)


def test_a_turn_begins_with_all_that_was_said_before() -> None:
    requests = draw(rate=1.0, turns=3, shared_prefix=5, think_seconds=7.0, num_requests=60)
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    chats: dict[str, list[TraceRequest]] = {}
    for request in requests:
        assert request.content[0] == ("prefix", 5)
        chats.setdefault(str(request.content[1].name), []).append(request)
    assert max(map(len, chats.values())) == 3
    for chat in chats.values():
        assert [r.prompt_tokens for r in chat] == [15, 35, 55][: len(chat)]
        for before, after in pairwise(chat):
            assert after.content[: len(before.content)] == before.content


def test_conversations_quote_what_is_known_best_most_often() -> None:
    library = Library(20, Lengths("uniform", 50, 40), 3)
    requests = draw(rate=1.0, library=library, shared_prefix=5, num_requests=2000)
    sizes: dict[Any, int] = {}
    quoted = Counter[Any]()
    for request in requests:
        prefix, *documents, _ = request.content[:-1]
        assert prefix == ("prefix", 5) and len({name for name, _ in documents}) == 3
        for name, size in documents:
            assert sizes.setdefault(name, size) == size, "a document is the same for all"
        quoted.update(name for name, _ in documents[:1])
        assert request.prompt_tokens == 5 + sum(size for _, size in documents) + 10
    assert len(sizes) == 20 and len(set(sizes.values())) > 10
    harmonic = sum(1 / (number + 1) for number in range(20))
    for number in range(4):
        share = quoted[f"document {number}"] / 2000
        assert share == pytest.approx(1 / (number + 1) / harmonic, rel=0.15)


def test_agents_take_up_a_task_together_and_go_their_own_ways() -> None:
    requests = draw(rate=0.01, agents=3, turns=2, think_seconds=1.0, num_requests=24)
    for first in range(0, 24, 6):
        (task,) = {request.content[0] for request in requests[first : first + 6]}
        assert task == (f"task {first // 2}", 10)
        assert len({request.arrival for request in requests[first : first + 3]}) == 1
        assert len({request.content[1] for request in requests[first : first + 6]}) == 3
    assert {request.prompt_tokens for request in requests} == {20, 40}


@pytest.mark.parametrize(
    ("name", "asked", "answered"),
    # 250 + 5 × 400 + 40; and 1,500 + 300, 300 for each of 1 to 8 turns, 90 for those before.
    [("rag", 2290, 180), ("agents", 1800 + 4.5 * 300 + 3.5 * 90, 90)],
)
def test_presets_are_what_they_say(name: str, asked: float, answered: float) -> None:
    requests = list(replace(PRESETS[name], num_requests=4000, rate=0.2))
    prefix = requests[0].content[0]
    assert {request.content[0] for request in requests} == {prefix}
    assert fmean(r.prompt_tokens for r in requests) == pytest.approx(asked, rel=0.05)
    assert fmean(r.output_tokens for r in requests) == pytest.approx(answered, rel=0.05)


def test_conversations_become_requests_with_their_history(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    chats = [
        {"id": "a", "conversations": [
            {"from": "human", "value": "x" * 8}, {"from": "gpt", "value": "y" * 9},
            {"from": "human", "value": "z"}, {"from": "gpt", "value": "w", "tokens": 50},
        ]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
        {"id": "c", "conversations": [
            {"from": "human", "value": "äö"}, {"from": "gpt", "value": "\N{GRINNING FACE}" * 90000}
        ]},
    ]  # fmt: skip
    path.write_text(json.dumps(chats, ensure_ascii=False), encoding="utf-8")
    first, second, third = read_sharegpt(path)
    assert (first.prompt_tokens, first.output_tokens) == (2, 3)
    assert (second.prompt_tokens, second.output_tokens) == (6, 50)
    assert second.content[:2] == first.content
    assert (third.prompt_tokens, third.output_tokens) == (1, 90000)
    assert Trace.open(path).format.name == "sharegpt"


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "known format"), ("[{", "not JSON"), ("[3]", "not a conversation"),
     ('[{"id": 1}]', "conversation 1: conversations is missing"),
     ('[{"conversations": [{"from": "gpt"}]}]', "turn 1: value must be a text"),
     ('[{"conversations": [{"from": "gpt", "tokens": -1}]}]', "turn 1: tokens must be")],
)  # fmt: skip
def test_broken_conversations_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        list(Trace.open(path))
