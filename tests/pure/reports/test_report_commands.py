"""``quire simulate --report`` and ``quire plan --report``, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli import main
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
    assert set(page.images) == {"memory", "batch", "latency", "waterfall", "block-map"}
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
    flags = [*MODEL, *LOAD, "--users", "10", "--report", str(tmp_path)]
    assert main(["plan", *flags]) == 0
    page = PageReader(tmp_path / "plan.html")
    for line in capsys.readouterr().out.splitlines()[-2:]:
        assert line in page.text  # the answer, and what to do
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["users"]["users"] == 10
    assert set(page.images) == {"ttft", "tpot", "users", "memory"}
    best = max(plan["changes"], key=lambda one: one["gain"])
    rows = page.table("change, made alone", "requests/s")
    assert [row[0] for row in rows[:2]] == ["as it is", best["name"]]
    assert all(row[2] != "× 1.00" for row in rows[1:])
