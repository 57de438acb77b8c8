from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.workload import DATASETS, Lengths, Synthetic, Trace, TraceRequest, read_sharegpt

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
