"""The comparison with other servers: its arithmetic, its table, and what it makes of failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.cache import Cache, PeerError
from benchmarks.peers.machine import instructions
from benchmarks.peers.measure import Failure, Sample, measure, read_report
from benchmarks.peers.runners.job import Job, Request, answer
from benchmarks.peers.session import Session
from benchmarks.peers.systems.llama_cpp import LlamaCpp, instruction_flags
from benchmarks.peers.systems.system import BITS, Run, Setup, System
from benchmarks.peers.table import (
    Row,
    as_json,
    measured,
    ratio,
    remarks,
    rival,
    speed,
    spread,
    table,
)
from benchmarks.peers.workloads import Workload, workloads
from quire_lab.bench.workloads import BenchRequest

CHATS = Workload("alpaca", [BenchRequest([11, 12, 13], 5), BenchRequest([14], 4)])
FIRST = Workload("first-token-1900", [BenchRequest([11] * 1900, 1)])


def sample(rate: float, tokens: int = 100, others: float = 0.0, peak: int = 10**9) -> Sample:
    return Sample(tokens / rate, tokens, peak, others, {})


def row(system: str, weights: str, *rates: float | None, workload: str = "alpaca") -> Row:
    rounds = [Failure("it crashed") if rate is None else sample(rate) for rate in rates]
    return Row(system, system.title(), weights, f"{weights} / bf16", {workload: [*rounds]})


def test_a_figure_is_the_median_of_its_rounds() -> None:
    one = row("vllm", "bf16", 90, 120, 100)
    assert speed(one, "alpaca") == pytest.approx(100)
    assert spread(one, "alpaca") == pytest.approx(0.15)
    assert speed(one, "prefix") is None and spread(row("vllm", "bf16", 90), "alpaca") is None


def test_a_ratio_is_taken_within_rounds() -> None:
    """The machine was twice as fast in the second round: figures scatter, ratios do not."""
    ours, theirs = row("quire", "bf16", 100, 200, 110), row("vllm", "bf16", 50, 100, 100)
    assert ratio(ours, theirs, "alpaca") == pytest.approx(2.0)
    lost = row("vllm", "bf16", None, 100, None)
    assert ratio(ours, lost, "alpaca") == pytest.approx(2.0)
    assert ratio(ours, row("vllm", "bf16", None), "alpaca") is None


def test_a_peer_is_compared_with_the_fastest_of_as_many_bits() -> None:
    rows = [
        row("quire", "bf16", 500),
        row("quire", "int8", 200),
        row("quire", "w8a8", 300),
        row("quire", "int4", None),
    ]
    assert rival(rows, row("openvino", "int8", 100), "alpaca") is rows[2]
    assert rival(rows, row("openvino", "int4", 100), "alpaca") is None


def test_the_rounds_that_were_measured_are_told() -> None:
    rows = [row("quire", "bf16", 120, 100), row("vllm", "bf16", 50, 60)]
    assert measured(rows) == "2 rounds"
    rows[1].rounds["alpaca"].pop()  # as an interruption leaves it
    assert measured(rows) == "1 to 2 rounds"
    assert measured([row("vllm", "bf16", None)]) == "no rounds"
    assert measured(rows[1:]) == "1 round"


def test_the_table() -> None:
    ours, theirs = row("quire", "bf16", 1200, 1000, 1100), row("vllm", "bf16", 600, 500, 550)
    ours.rounds[FIRST.name] = [sample(0.5, 1), sample(0.5, 1), sample(0.5, 1)]
    theirs.rounds[FIRST.name] = [sample(0.25, 1, peak=3 * 10**9), Failure("out of memory")]
    lines = table([ours, theirs, row("openvino", "bf16", None)], [CHATS, FIRST]).splitlines()
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["", "weights / KV", "alpaca, tokens/s", "first-token-1900", "peak memory"],
        ["---"] * 5,
        ["**Quire**", "bf16 / bf16", "1,100 ± 9%", "2.00 s ± 0%", "1.00 GB"],
        ["Vllm", "bf16 / bf16", "550 ± 9% (2.00)", "4.00 s (2.00)", "3.00 GB"],
        ["Openvino", "bf16 / bf16", "failed", "–", "–"],
    ]


def test_remarks_say_what_failed_and_who_was_not_alone() -> None:
    crashed, absent = row("vllm", "bf16", None), row("llamacpp", "int4")
    crashed.rounds["prefix"] = [Failure("it crashed")]
    absent.failure = Failure("no compiler")
    busy = row("quire", "bf16", 100)
    busy.rounds["prefix"] = [sample(100, others=0.7), sample(100, others=0.04)]
    assert [*remarks([busy, crashed, absent])] == [
        "Vllm, bf16 / bf16: alpaca, prefix: it crashed",
        "Llamacpp, int4 / bf16: cannot be set up: no compiler",
        "warning: not alone on the machine in 1 of 3 runs; others had up to 0.70 cores "
        "(Quire, bf16 / bf16, prefix)",
    ]


def test_json_has_every_round() -> None:
    found = as_json([row("quire", "bf16", 100, 300), row("vllm", "bf16", 100, None)])
    figures = json.loads(json.dumps(found))[1]["workloads"]["alpaca"]
    assert figures["quire_is_times_as_fast"] == 1.0 and figures["failure"] == "it crashed"
    assert [one["seconds"] for one in figures["rounds"]] == [1.0]


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ('{"prompt_tokens": 4, "output_tokens": 8}', "4 tokens in and 8 out, where 4 and 9 were"),
        ('{"prompt_tokens": 3, "output_tokens": 9}', "3 tokens in and 9 out, where 4 and 9 were"),
        ("out of luck", "no report: out of luck"),
        ("[]", "no report"),
        ("", "no report: it said nothing"),
    ],
)
def test_a_run_of_other_lengths_is_none(printed: str, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        read_report(printed, CHATS)
    exact = {"prompt_tokens": 4, "output_tokens": 9}
    assert read_report(f"noise\n{json.dumps(exact)}\n", CHATS) == exact


def test_a_runner_refuses_a_short_answer(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("m", [Request([1], 2), Request([1, 2], 2)], 1, 1, False, None)
    with pytest.raises(SystemExit, match="1 answers of another length; request 1: 1 of 2"):
        answer(job, [[5, 6], [7]], 1.0)
    answer(job, [[5, 6], [7, 8]], 1.0, facts={"cache": "u8"})
    report = json.loads(capsys.readouterr().out)
    assert (report["prompt_tokens"], report["output_tokens"], report["cache"]) == (3, 4, "u8")


def test_a_process_that_fails_is_told_by_its_last_words(tmp_path: Path) -> None:
    program = "import sys; print('Trace', file=sys.stderr); sys.exit('no such instruction')"
    command = [sys.executable, "-c", program]
    result = measure(command, {}, CHATS, tmp_path / "log")
    assert result == Failure("ended with 1: no such instruction")
    assert "Trace" in (tmp_path / "log").read_text()


class Made(System):
    """A system that serves by printing that it did, or that cannot be set up."""

    forms: Mapping[str, str] = {"bf16": "bf16 / bf16", "int8": "int8 / u8"}

    def __init__(self, setup: Setup, title: str, served: list[str], missing: str = "") -> None:
        super().__init__(setup)
        self.title, self._served, self._missing = title, served, missing

    def set_up(self, shape: str, weights: str) -> None:
        if self._missing:
            raise PeerError(self._missing)

    def command(self, run: Run) -> list[str]:
        self._served.append(f"{self.title} {run.weights} {run.workload.name}")
        lines = [json.loads(line) for line in run.file.read_text().splitlines()]
        report = {
            "prompt_tokens": sum(len(line["prompt"]) for line in lines),
            "output_tokens": sum(line["max_tokens"] for line in lines),
            "seconds": 1.0,
            "peak_rss_bytes": 1,
        }
        return [sys.executable, "-c", f"print({json.dumps(report)!r})"]

    def form(self, weights: str, report: Mapping[str, Any]) -> str:
        return f"{weights} / told"


class Crashing(Made):
    def command(self, run: Run) -> list[str]:
        super().command(run)
        return [sys.executable, "-c", "import os; os.abort()"]


def test_all_take_turns_and_nobody_stops_the_others(tmp_path: Path) -> None:
    setup, served = Setup(Cache(tmp_path), 1, None), list[str]()
    systems = {
        "quire": Made(setup, "Q", served),
        "vllm": Made(setup, "V", served, missing="cannot be installed"),
        "openvino": Crashing(setup, "C", served),
        "llamacpp": Made(setup, "L", served),
    }
    session = Session(setup.cache, systems, ["bf16"])
    rows = session.set_up("opt-125m")
    too_long = Workload("long", [BenchRequest([11] * 2048, 1)])
    session.measure("opt-125m", rows, [CHATS, too_long], rounds=2)
    # The second round goes backwards, and what has crashed is not tried again.
    assert served == [f"{title} bf16 alpaca" for title in "QCLLQ"]
    assert [row.form for row in rows if row.samples("alpaca")] == ["bf16 / told"] * 2
    assert [len(row.samples("alpaca")) for row in rows] == [2, 0, 0, 2]
    assert [row.failure for row in rows if row.failure] == [Failure("cannot be installed")]
    failed = rows[2].failed("alpaca")
    assert failed is not None and failed.reason.startswith("ended with -6")


def test_forms_of_peers_are_measured_once(tmp_path: Path) -> None:
    setup, served = Setup(Cache(tmp_path), 1, None), list[str]()
    quire = Made(setup, "Q", served)
    quire.forms = {form: f"{form} / int8" for form in BITS}
    systems = {"quire": quire, "openvino": Made(setup, "O", served)}
    session = Session(setup.cache, systems, ["w4a8", "int4", "w8a8", "int8", "bf16"])
    assert [(row.system, row.weights) for row in session.set_up("tiny")] == [
        *(("quire", "bf16"), ("openvino", "bf16")),
        *(("quire", "int8"), ("quire", "w8a8"), ("openvino", "int8")),
        *(("quire", "int4"), ("quire", "w4a8")),  # the peer has no such weights
    ]


def test_a_step_is_done_once_unless_its_inputs_change(tmp_path: Path) -> None:
    cache, made = Cache(tmp_path), list[str]()

    def make(path: Path) -> None:
        path.mkdir()  # fails if there is something left
        made.append(path.name)
        if len(made) == 1:
            raise PeerError("the disk is full")

    with pytest.raises(PeerError):
        cache.once("models/a", "1", make)
    for inputs in ("1", "1", "2"):
        assert cache.once("models/a", inputs, make) == tmp_path / "models" / "a"
    assert len(made) == 3


def test_a_command_that_cannot_run_is_told_in_a_line(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(PeerError, match="no-such-program: No such file"):
        cache.run(["no-such-program"])
    with pytest.raises(PeerError, match=r"ended with 3: the reason \("):
        cache.run(["sh", "-c", "echo first; echo the reason >&2; exit 3"])


def test_llama_cpp_knows_no_opt(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="does not know the architecture of opt-125m"):
        LlamaCpp(Setup(Cache(tmp_path), 1, None)).set_up("opt-125m", "bf16")


def test_llama_cpp_is_built_for_the_instructions_that_quire_is_told() -> None:
    assert instruction_flags(None) == instruction_flags("amx") == ["-DGGML_NATIVE=ON"]
    flags = instruction_flags("avx2")
    assert "-DGGML_NATIVE=OFF" in flags
    assert {"-DGGML_AVX2=ON", "-DGGML_AVX512=OFF", "-DGGML_AVX512_BF16=OFF"} < {*flags}
    assert not [flag for flag in instruction_flags("portable") if flag.endswith("=ON")]


def test_instruction_sets_of_x86_and_arm() -> None:
    assert instructions("flags\t\t: fpu avx2 fma amx_tile\n") == ["amx_tile", "avx2", "fma"]
    assert instructions("Features\t: fp asimd bf16\n\n") == ["bf16", "asimd"]
    assert instructions("") == []


def test_workloads_come_in_the_order_of_the_table() -> None:
    found = workloads(["first-token", "alone", "sharegpt"], 3)
    assert [(one.name, len(one.requests), one.output_tokens) for one in found[1:]] == [
        ("alone", 1, 256),
        ("first-token-1900", 1, 1),
        ("first-token-4096", 1, 1),
    ]
    assert (found[0].name, len(found[0].requests)) == ("sharegpt", 3)
    assert [one.longest for one in found[1:]] == [384, 1901, 4097]
