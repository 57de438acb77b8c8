"""``quire simulate --report`` and ``quire plan --report``, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.tools.cli import main
from quire_lab.commands.text import number
from support.page_reader import PageReader

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow

MODEL = ["opt-125m", "--machine", "l4", "--kv-cache-memory-bytes", "16MiB"]
LOAD = ["--input", "20-60", "--output", "10-40", "--requests", "60"]


def test_simulate_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speculation = ["--speculative-config", '{"method": "ngram"}', "--acceptance", "0.9"]
    flags = [*MODEL, *LOAD, "--rate", "400", "--report", str(tmp_path), "--json", *speculation]
    assert main(["simulate", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    page = PageReader(tmp_path / "report.html")
    written = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert written["num_finished"] == printed["num_finished"] == 60
    assert written["latency"] == printed["latency"]
    drafts = printed["drafts"]
    assert f"{drafts['num_accepted_tokens']:,} of {drafts['num_draft_tokens']:,} d" in page.text
    # Drawn at the moment when most was taken, and with latency against rate.
    assert set(page.images) == {"memory", "batch", "latency", "waterfall"}
    assert set(page.frames) == {"Block map"} and (tmp_path / "block-map.quire").exists()
    held = sum(int(row[3]) for row in page.table("request", "outputs"))
    assert held >= 0.8 * printed["num_blocks"]


def test_the_block_map_is_of_the_second_that_was_asked_for(tmp_path: Path) -> None:
    flags = [*MODEL, *LOAD, "--rate", "400", "--report", str(tmp_path), "--map-at", "0"]
    assert main(["simulate", *flags]) == 0
    rows = PageReader(tmp_path / "report.html").table("request", "outputs")
    assert [row[0] for row in rows] == ["0"]  # who came first, alone


def test_a_moment_without_a_report_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *MODEL, *LOAD, "--map-at", "1"]) == 1
    assert "give --report DIR" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    assert main(["simulate", *MODEL, *LOAD, "--report", str(tmp_path / "taken")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_plan_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*MODEL, *LOAD, "--users", "10", "--report", str(tmp_path), "--price", "l4=0.5"]
    assert main(["plan", *flags]) == 0
    page = PageReader(tmp_path / "plan.html")
    said = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert len(said) == 2 and all(line in page.text for line in said)  # and what to do
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["users"]["users"] == 10
    assert set(page.images) == {"ttft", "tpot", "users", "memory"}
    best = max(plan["changes"], key=lambda one: one["gain"])
    rows = page.table("change, made alone", "requests/s")
    assert [row[0] for row in rows[:2]] == ["as it is", best["name"]]
    assert all(row[2] != "× 1.00" for row in rows[1:])
    assert all("$1 an hour, $" in row[3] for row in rows if row[0].startswith("2 replicas"))


def test_simulate_writes_a_page_of_a_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = ["--replicas", "2,1xt4", "--fail-at", "0.05:1", "--price", "l4=0.5"]
    flags = [*MODEL, *LOAD, "--rate", "400", *fleet, "--ttft", "5"]
    assert main(["simulate", *flags, "--report", str(tmp_path)]) == 0
    page = PageReader(tmp_path / "fleet.html")
    assert set(page.images) == {"ttft", "tpot", "load"}
    assert "2 × l4, 1 × t4 are enough for 400 requests/s: 100.0% of the requests" in page.text
    assert "A replica failed once." in page.text and "replica 1 after 50 ms" in page.text
    assert "No price is known of all" in page.text  # of the other machine there is none
    rows = page.table("machine", "replicas")
    assert [row[:3] for row in rows] == [["l4", "2", "2"], ["t4", "1", "1"], ["all", "3", "3"]]
    assert rows[0][7] == "1" and rows[2][7] == "-"
    written = json.loads((tmp_path / "fleet.json").read_text(encoding="utf-8"))
    assert written["num_finished"] == 60 and written["dollars"] is None
    capsys.readouterr()
    priced = [*flags, "--price", "t4=0.25", "--json"]
    assert main(["simulate", *priced]) == 0
    told = json.loads(capsys.readouterr().out)
    paid = sum(
        (0.5, 0.5, 0.25)[one["slot"]] * one["paid_seconds"] / 3600 for one in told["replicas"]
    )
    assert told["dollars"] == pytest.approx(paid)


def test_a_fleet_s_headline_says_what_it_served(tmp_path: Path) -> None:
    flags = [*MODEL, *LOAD, "--rate", "90000", "--replicas", "2", "--report", str(tmp_path)]
    assert main(["simulate", *flags]) == 0
    text = PageReader(tmp_path / "fleet.html").text
    served = json.loads((tmp_path / "fleet.json").read_text(encoding="utf-8"))["request_rate"]
    assert served < 9000
    assert f"2 × l4 served {number(served)} requests/s of the 90,000 that came; 90 % had" in text


def test_plan_writes_a_page_of_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--fewest-machines", "--machines", "l4,t4", "--price", "l4=0.5", "--ttft", "5"]
    flags = [*MODEL[:1], *MODEL[3:], *LOAD, "--users", "8", *search, "--report", str(tmp_path)]
    assert main(["plan", *flags]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    page = PageReader(tmp_path / "fleet.html")
    assert verdict == "Fewest: 1 x l4." and verdict in page.text
    assert {"ttft", "tpot", "load"} == set(page.images)
    rows = page.table("machine", "replicas")
    assert [row[0] for row in rows] == ["l4", "t4"]
    assert rows[0][7] == "0.5" and float(rows[0][8]) > 0 and rows[1][7:9] == ["-", "-"]
    assert "no price is known of t4" in page.text
    assert "l4 attains" in page.text and "t4 attains" in page.text and "a100" not in page.text
