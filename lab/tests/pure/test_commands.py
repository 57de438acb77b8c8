"""``quire simulate`` and ``quire plan`` as a person types them, without a model."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.tools.cli import main
from quire_lab.reproduction.run import EXPERIMENTS

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.5,{300 + 10 * second},{20 + second}\n" for second in range(50)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_simulate_tells_people_and_programs_the_same(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    command = ["simulate", "llama-3-8b", "--machine", "h100", "--trace", trace]
    requests, series = tmp_path / "requests.csv", tmp_path / "series.csv"
    values = json.loads(run(capsys, *command, "--json", "--requests-out", str(requests),
                            "--series-out", str(series)))  # fmt: skip
    assert (values["num_finished"], values["num_clipped"]) == (50, 0)
    assert values["setup"]["kv_bytes_per_token"] == 128 * 1024
    assert len(requests.read_text().splitlines()) == 51
    assert series.read_text().startswith("start,seconds,used,")
    text = run(capsys, *command)
    assert "50 requests in" in text and "128 KiB of KV cache a token" in text
    assert "TTFT" in text and "ms" in text
    assert text == run(capsys, *command)  # same seed, same bytes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("options", [(), ("--users", "3")])
def test_simulate_shows_its_progress_at_a_terminal_only(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trace: str,
    options: tuple[str, ...],
) -> None:
    command = ["simulate", "llama-3-8b", "--trace", trace, "--requests", "40", *options]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(command) == 0
    assert "requests:" in terminal.getvalue() and "/40" in terminal.getvalue()


def test_plan_answers_in_words(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    text = run(capsys, "plan", "llama-3-8b", "--machine", "l4", "--trace", trace, "--ttft", "2",
               "--tpot", "0.2", "--requests", "40", "--rate", "30")  # fmt: skip
    assert text.split("\n\n")[1].startswith("Not enough: l4 takes")  # the answer comes first
    for words in ("fit at once", "most users", "goodput", "what binds", "contiguous, Max",
                  "KV cache in 8 bits", "beams", "block size"):  # fmt: skip
        assert words in text
    users = json.loads(
        run(capsys, "plan", "llama-2-7b", "--machine", "a100-40", "--users", "20", "--requests",
            "40", "--input", "625-1025", "--output", "50-60", "--json")
    )["users"]  # fmt: skip
    assert users["users"] == 20
    assert users["by_allocator"]["max"]["most_running"] == 11


def drafted_by(model: str | None) -> list[str]:
    config = json.dumps({"method": "draft", **({} if model is None else {"model": model})})
    return ["llama-3-8b", "--dataset", "alpaca", "--acceptance", "0.5",
            "--speculative-config", config]  # fmt: skip


def test_speculation_is_simulated_and_weighed(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["llama-3-8b", "--machine", "h100", "--input", "40", "--output", "30-60", "--users",
            "2", "--requests", "12", "--acceptance", "0.7,0.8"]  # fmt: skip
    config = ["--speculative-config", '{"method": "suffix", "num_speculative_tokens": 4}']
    text = run(capsys, "simulate", *load, *config)
    assert "drafts" in text and "were right" in text and "tokens of an output a step" in text
    values = json.loads(run(capsys, "simulate", *load, *config, "--json"))["drafts"]
    assert 1.5 < values["tokens_per_step"] < 4
    assert values["num_accepted_tokens"] < values["num_draft_tokens"]
    command = ["plan", *load, "--max-model-len", "512"]
    (answer,) = [line for line in run(capsys, *command).splitlines() if "speculation" in line]
    assert "yes: with 2 users at once, at best 12 drafts in each step" in answer
    found = json.loads(run(capsys, *command, "--json"))["speculation"]
    assert found["helps"] and found["best_num_speculative_tokens"] == 12
    both = '{"method": "auto", "model": "llama-3-8b", "quantization": "int8"}'
    rates = ["--draft-acceptance", "0.9", "--coverage", "0.1"]
    machines = ["--tensor-parallel-size", "4", "--speculative-config", both]
    text = run(capsys, "simulate", "llama-3-70b", *load[1:], *machines, *rates)
    assert "llama-3-8b drafts: 8.187 GiB of weights more" in text
    assert "128 KiB of that KV cache" in text
    names = [trial["num_speculative_tokens"] for trial in found["trials"]]
    assert names == [0, 1, 2, 3, 4, 6, 8, 12, 16, "chosen"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-3-8b"], "say what is to be served"),
        (["--dataset", "alpaca"], "name a model"),
        (["llama-3-8c", "--dataset", "alpaca"], "did you mean llama-3-8b?"),
        (["opt-175b", "--dataset", "alpaca"], "what would fit: --tensor-parallel-size 8"),
        (["opt-13b", "--dataset", "alpaca", "--machine", "b100"], "unknown machine 'b100'"),
        (["opt-13b", "--dataset", "alpaca", "--trace", "x"], "contradict each other"),
        (["opt-13b", "--dataset", "alpaca", "--rate", "-1"], "rate must be above 0"),
        (["opt-13b", "--dataset", "agents", "--turns", "0"], "turns must be at least 1"),
        (["opt-13b", "--dataset", "alpaca", "--users", "0"], "users must be at least 1"),
        (["opt-13b", "--dataset", "alpaca", "--users", "16777217"], "users must be at most 16,777"),
        (["opt-13b", "--dataset", "alpaca", "--ttft", "0"], "ttft must be above 0"),
        (["opt-13b", "--input", "9-3", "--output", "5"], "not a distribution of lengths"),
        (
            ["opt-13b", "--dataset", "alpaca", "--block-size", "0"],
            "block_size must be an integer",
        ),
        (["opt-13b", "--trace", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["opt-13b", "--dataset", "alpaca", "--cost-model", "nowhere"], "nowhere cannot be read"),
        (["opt-13b", "--dataset", "alpaca", "--swap-space", "-1"], "swap_space must be from 0"),
        (["opt-13b", "--dataset", "alpaca", "--acceptance", "7"], "acceptance must be from 0 to 1"),
        (["opt-13b", "--dataset", "alpaca", "--coverage", "0.5"], "coverage does nothing without"),
        (
            ["opt-13b", "--dataset", "alpaca", "--speculative-config", '{"k": 1}'],
            "unknown option k",
        ),
        (
            ["opt-13b", "--dataset", "alpaca", "--speculative-config", '{"method": "auto"}'],
            "say how often drafts are right",
        ),
        (drafted_by("llama-2-7b"), "model llama-2-7b: it has 32,000 tokens where the model"),
        (drafted_by("llama-3-70b"), "those of the model it drafts for 14.96 GiB: choose a smaller"),
        (drafted_by("nobody"), "model nobody: model 'nobody' is neither in the catalogue"),
        (drafted_by(None), 'method "draft" needs a model'),
        ([*drafted_by("llama-3.2-1b"), "--coverage", "0.5"], "coverage does nothing with method"),
        ([*drafted_by("llama-3.2-1b"), "--draft-acceptance", "1"], "with method draft give --acc"),
    ],
)
def test_bad_input_is_told_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    for command in ("simulate", "plan"):
        assert main([command, *arguments]) == 1
        assert message in capsys.readouterr().err


def test_a_simulation_loads_no_torch() -> None:
    code = (
        "import sys, quire.tools.cli; "
        "quire.tools.cli.main(['simulate', 'opt-13b', '--dataset', 'alpaca', '--requests', '5']); "
        "print(sorted({'torch', 'numpy', 'transformers', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_trace_s_own_times_are_scaled_to_a_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bursts stay bursts; a trace without times comes at random."""
    trace, rows = tmp_path / "trace.csv", tmp_path / "rows.csv"
    times = [10, 10, 10, 14, 20]
    trace.write_text("t,p,o\n" + "".join(f"{time},64,4\n" for time in times))
    load = ["llama-3-8b", "--machine", "h100", "--trace", str(trace)]
    out = ["--requests-out", str(rows)]

    def arrivals(*flags: str) -> list[float]:
        run(capsys, "simulate", *load, *flags, *out)
        with rows.open(newline="") as file:
            return sorted(float(row["arrival_time"]) for row in csv.DictReader(file))

    timed, untimed = ["--columns", "prompt=p,output=o,time=t"], ["--columns", "prompt=p,output=o"]
    own = arrivals(*timed)
    assert [one - own[0] for one in own] == [0, 0, 0, 4, 10]
    assert arrivals(*timed, "--rate", "0.8") == [0, 0, 0, 2, 5]  # twice its own 0.4
    assert arrivals(*timed, "--rate", "0.8", "--replicas", "2") == [0, 0, 0, 2, 5]
    drawn = arrivals(*untimed, "--rate", "0.8")
    assert len(set(drawn)) == 5


@pytest.mark.parametrize("command", ["plan", "simulate", "calibrate", "compare", "reproduce"])
def test_help_ends_with_what_can_be_typed(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    described, _, typed = text.partition("For instance: ")
    own = [words for words in typed.split("quire ") if words.startswith(command)]
    assert own or command == "reproduce"
    assert all(flag in described for flag in re.findall(r"--[a-z-]+", " ".join(own)))
    if command == "reproduce":
        assert all(key in text for key in EXPERIMENTS)
    if command == "calibrate":
        assert "--session-timeout" not in text and "--max-num-batched-tokens" in text
