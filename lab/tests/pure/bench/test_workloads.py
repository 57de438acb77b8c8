"""Made workloads have the lengths they promise, and files are read or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire_lab.bench.workloads import WORKLOADS, BenchRequest, make_workload, one_request


@pytest.mark.parametrize(
    ("name", "tokens_in", "tokens_out"),
    [("sharegpt", 7255, 17632), ("alpaca", 1026, 3078), ("prefix", 18432, 4096)],
)
def test_the_published_figures_are_for_these_lengths(
    name: str, tokens_in: int, tokens_out: int
) -> None:
    requests = make_workload(name, 64)
    assert len(requests) == 64
    assert sum(len(request.prompt) for request in requests) == tokens_in
    assert sum(request.max_tokens for request in requests) == tokens_out


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_its_seed(name: str) -> None:
    assert make_workload(name, 9, seed=1) == make_workload(name, 9, seed=1)
    assert make_workload(name, 9, seed=1) != make_workload(name, 9, seed=2)


@pytest.mark.parametrize(("name", "shared"), [("prefix", 256), ("sharegpt", 0)])
def test_prompts_share_what_the_workload_says_and_no_more(name: str, shared: int) -> None:
    prompts = [request.prompt for request in make_workload(name, 8)]
    assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
    assert len({tuple(prompt[shared : shared + 4]) for prompt in prompts}) == 8


def test_requests_are_cut_to_the_model() -> None:
    request = BenchRequest([*range(10, 110)], 50, arrival=2.0)
    assert request.cut(None) == request.cut(150) == request
    assert request.cut(100) == BenchRequest([*range(10, 60)], 50, 2.0)
    assert request.cut(40) == BenchRequest([*range(10, 30)], 20, 2.0)


def test_files_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = [{"prompt": [1, 2, 3], "max_tokens": 4}, {"prompt": [5], "max_tokens": 6}]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert make_workload(str(file), 64) == [BenchRequest([1, 2, 3], 4), BenchRequest([5], 6)]
    assert make_workload(str(file), 1) == [BenchRequest([1, 2, 3], 4)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        '{"prompt": [1]}',
        '{"prompt": "no", "max_tokens": 1}',
        '{"prompt": [], "max_tokens": 1}',
        '{"prompt": [1], "max_tokens": 0}',
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"requests\.jsonl"):
        make_workload(str(file), 64)


def test_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"sharegpt, alpaca, prefix or a file .*'nothing'"):
        make_workload("nothing", 1)
    with pytest.raises(ConfigError, match="num_prompts must be at least 1, got 0"):
        make_workload("alpaca", 0)
    with pytest.raises(ConfigError, match="output_len"):
        one_request(1, 0, seed=0)
