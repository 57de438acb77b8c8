"""``quire simulate --replicas`` and ``quire plan --fewest-machines`` as a person types them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.tools.cli import main
from quire_lab.commands.fleet import kinds_of
from quire_lab.simulation import MACHINES, MODELS, Deployment, find_machine
from quire_lab.simulation.fleet import Role
from quire_lab.simulation.planning.search import lowest_count

SIMULATE = ["simulate", "llama-3-8b", "--machine", "h100"]
LOAD = ["--input", "200-400", "--output", "10-20", "--requests", "40", "--rate", "40"]
PLAN = ["plan", "llama-3-8b", "--machine", "h100", *LOAD[:-1], "3", "--fewest-machines"]
GOALS = ["--ttft", "0.3", "--tpot", "0.02"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_a_fleet_is_told_to_people_and_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    requests = tmp_path / "requests.csv"
    command = [*SIMULATE, *LOAD, *GOALS, "--replicas", "2,1xa100-80:2", "--fail-at", "0.5:0:1"]
    values = json.loads(run(capsys, *command, "--json", "--requests-out", str(requests)))
    assert values["num_finished"] == 40 == len(requests.read_text().splitlines()) - 1
    assert [one["num_machines"] for one in values["replicas"]] == [1, 1, 2]
    assert values["num_lost"] == values["replicas"][0]["num_lost"] > 0
    text = run(capsys, *command)
    for words in ("2 (h100), 1 (2 x a100-80); routed prefix-aware", "40 requests in", "failures",
                  "sent again: TTFT", "goals met"):  # fmt: skip
        assert words in text
    assert text == run(capsys, *command)  # same seed, same bytes
    apart = [*SIMULATE, *LOAD, "--replicas", "1:prefill,1:decode", "--users", "3"]
    for pairing in (["--pairing", "proxy"], ["--max-local-prefill-length", "0"]):
        assert "handed over 40 prompts" in run(capsys, *apart, *pairing)
    assert "for prompts with over 400 new tokens" in (
        text := run(capsys, *apart, "--max-local-prefill-length", "400")
    )
    assert "handed over" not in text


def test_the_fewest_machines_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*PLAN, *GOALS, "--machines", "h100,a100-80,graviton4", "--price", "h100=2"]
    told = {one["machine"]: one for one in json.loads(run(capsys, *command, "--json"))["machines"]}
    h100, a100, slow = (told[name] for name in ("h100", "a100-80", "graviton4"))
    assert 1 <= h100["machines"] <= a100["machines"] and slow["machines"] is None
    assert h100["dollars_per_hour"] == 2 * h100["machines"]
    assert a100["dollars_per_hour"] is a100["dollars_per_million_tokens"] is None
    assert h100["watts"] == 700 * h100["machines"]
    assert h100["dollars_per_million_output_tokens"] > h100["dollars_per_million_tokens"] > 0
    text = run(capsys, *command, "--budget", "1")
    assert "no price is known of a100-80: say --price a100-80=" in text
    assert "$1 an hour pays for no h100" in text
    assert "not with graviton4: goals nobody can meet" in text
    assert f"Fewest: {h100['machines']} x h100." in text


def test_a_price_may_stand_in_the_machines_file(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    path.write_text('{"memory_gb": 80, "tflops": 9, "bandwidth_gb": 9, "price_per_hour": 1.5}')
    assert find_machine(str(path)).price_per_hour == 1.5
    assert all(machine.price_per_hour is None for machine in MACHINES.values())


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ([*SIMULATE, *LOAD, "--routing", "round-robin"], "give --replicas too"),
        ([*SIMULATE, *LOAD, "--fail-at", "1:0"], "fail_at is for several engines"),
        ([*SIMULATE, *LOAD, "--replicas", "2", "--series-out", "x"], "series_out is for one"),
        ([*SIMULATE, *LOAD, "--replicas", "2", "--price", "t4=1"], "among the machines, h100"),
        ([*SIMULATE, *LOAD, "--price", "h100=1"], "price is for several engines"),
        ([*SIMULATE, *LOAD, "--replicas", "2xh100:prefil"], "such as 8 or 2xh100:2:prefill"),
        ([*SIMULATE, *LOAD, "--replicas", "2", "--min-replicas", "1"], "without max_replicas"),
        ([*SIMULATE, *LOAD, "--replicas", "2", "--pairing", "proxy"], "give replicas roles"),
        ([*SIMULATE, *LOAD, "--replicas", "1:prefill,1:decode", "--pairing", "proxy",
          "--max-local-prefill-length", "9"], "a proxy sends every prompt to prefill"),
        ([*SIMULATE, *LOAD, "--replicas", "1:prefill,1:decode", "--max-local-prefill-length",
          "-1"], "must be at least 0, got -1"),
        ([*SIMULATE, *LOAD, "--replicas", "2", "--pipeline-parallel-size", "2"],
         "pipeline stages are not simulated"),
        ([*SIMULATE, *LOAD, "--pipeline-parallel-size", "2"], "pipeline stages are not simulated"),
        ([*PLAN, *GOALS, "--pipeline-parallel-size", "2"], "pipeline stages are not simulated"),
        (PLAN, "needs goals to meet"),
        ([*PLAN[:4], *LOAD, "--budget", "5"], "budget does nothing without fewest_machines"),
        ([*PLAN, *GOALS, "--budget", "5"], "budget needs prices"),
        ([*PLAN, *GOALS, "--price", "t4=1"], "price of 't4': not among the machines, h100"),
        ([*PLAN, *GOALS, "--price", "h100"], "price must be NAME=DOLLARS"),
        ([*PLAN[:-7], "--fewest-machines", "--input", "9", "--output", "9", *GOALS],
         "needs a load"),
    ],
)  # fmt: skip
def test_what_does_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], command: Sequence[str], complaint: str
) -> None:
    assert main(command) != 0
    assert complaint in capsys.readouterr().err


def test_groups_of_replicas() -> None:
    base = Deployment(MODELS["llama-3-8b"], MACHINES["h100"])

    def told(text: str) -> list[Any]:
        return [(kind.deployment.machine.name, kind.deployment.tensor_parallel, kind.role)
                for kind in kinds_of(text, base)]  # fmt: skip

    assert told("2") == [("h100", 1, Role.BOTH)] * 2
    assert told("1xl40s:4:decode, 1:prefill") == [
        ("l40s", 4, Role.DECODE),
        ("h100", 1, Role.PREFILL),
    ]
    with pytest.raises(ConfigError, match="unknown machine 'h10'"):
        told("2xh10")


@pytest.mark.parametrize("true", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("hint", [1, 5, 90])
def test_the_lowest_count_is_found_in_few_trials(true: int, hint: int) -> None:
    tried: list[int] = []

    def meets(count: int) -> bool:
        tried.append(count)
        return count >= true

    assert lowest_count(meets, hint, 1, 100) == true
    assert len(tried) == len(set(tried)) <= 14
    assert lowest_count(meets, hint, true, 100) == true
    assert lowest_count(meets, hint, 1, true - 1) is None
