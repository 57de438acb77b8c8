"""A report says what the simulation gave: its page, CSV, JSON and trace are read back."""

from __future__ import annotations

import base64
import csv
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from quire.core.memory import Usage
from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import Segment, TraceRequest
from quire.engine.work import Work
from quire_lab.recorded import Look, MomentRecording
from quire_lab.recording import check, lines
from quire_lab.reports import write_report
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import Instant, SimulationResult
from quire_lab.simulation.simulator import Simulator
from support.limits import make_limits
from support.page_reader import PageReader

pytest.importorskip("matplotlib")


class Costs:
    def seconds(self, work: Work) -> float:
        return 0.02 + 1e-4 * work.num_tokens

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(swap_per_block=5e-4, recompute_per_token=3e-4)


def simulated() -> tuple[SimulationResult, Instant]:
    """A pool that is too small: requests wait, share, give way and are refused."""
    settings = make_limits(
        num_blocks=40, max_model_len=300, block_size=4, enable_prefix_caching=True
    )
    shared = (Segment("<system>", 8),)
    workload = [TraceRequest(0.05 * i, 12 + i % 5, 20, content=shared) for i in range(30)]
    workload += [TraceRequest(2.0, 20, 10, n=3), TraceRequest(2.1, 400, 10)]
    simulator = Simulator(settings, Costs(), KeptResults(records=None, decisions=None))
    kept = MomentRecording(simulator.engine, Look(simulator.engine, "tiny"), 1.0)
    result = simulator.run(workload)
    assert kept.moment is not None
    return result, kept.moment


@pytest.fixture(scope="module")
def both() -> tuple[SimulationResult, Instant]:
    return simulated()


@pytest.fixture(scope="module")
def result(both: tuple[SimulationResult, Instant]) -> SimulationResult:
    return both[0]


@pytest.fixture(scope="module")
def moment(both: tuple[SimulationResult, Instant]) -> Instant:
    return both[1]


def write(directory: Path, result: SimulationResult, moment: Instant) -> Path:
    facts = {"model": "<b>tiny & small</b>"}
    return write_report(
        directory, result, title="A <test>", facts=facts, bytes_per_token=1024, moment=moment
    )


@pytest.fixture(scope="module")
def written(
    result: SimulationResult, moment: Instant, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("report") / "new"
    assert write(directory, result, moment) == directory / "report.html"
    return directory


@pytest.fixture(scope="module")
def page(written: Path) -> PageReader:
    return PageReader(written / "report.html")


def test_the_workload_shows_what_a_report_is_for(result: SimulationResult) -> None:
    assert result.preemptions.recomputes and result.num_refused == 1
    assert result.prefix_cache.hits


def test_the_page_loads_nothing_from_elsewhere(page: PageReader) -> None:
    assert page.external == []
    assert set(page.images) == {"memory", "batch", "waterfall"}
    assert set(page.frames) == {"Block map"}
    for name, data in page.images.items():
        root = ElementTree.fromstring(data)
        assert root.tag.endswith("svg"), name


def test_text_is_text(page: PageReader) -> None:
    assert page.table("setting") == [["model", "<b>tiny & small</b>"]]
    assert "A <test>" in page.text


def test_the_page_divides_the_pool(page: PageReader, result: SimulationResult) -> None:
    rows = page.table("mean over the time of all steps")
    slots = [int(row[1].replace(",", "")) for row in rows]
    assert Usage(*slots) == result.mean_usage
    assert sum(float(row[2].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.3)


def test_the_page_gives_latencies(page: PageReader, result: SimulationResult) -> None:
    rows = {
        row[0]: [float(cell.replace(",", "")) for cell in row[1:]] for row in page.table("", "mean")
    }
    ttft = rows["TTFT: arrival to first token (s)"]
    one = result.ttft
    assert ttft == pytest.approx([one.mean, one.p50, one.p90, one.p99, one.maximum], abs=6e-4)
    assert rows["TPOT: time per output token after it (ms)"][0] == pytest.approx(
        1e3 * result.tpot.mean, abs=0.06
    )


def test_the_page_lists_owners(page: PageReader, written: Path, moment: Instant) -> None:
    """As the block tables of the recording have them, which is beside the page and in it."""
    recording = (written / "block-map.quire").read_bytes()
    assert base64.b64encode(recording).decode() in page.frames["Block map"]
    assert check(written / "block-map.quire").num_blocks == 40
    owners: dict[str, set[int]] = {}
    holders: Counter[int] = Counter()
    for line in lines(written / "block-map.quire")[1]:
        for table in line.value["tables"] if line.kind == "story" else ():
            (kv_group,) = table["kv_groups"]
            owners.setdefault(line.value["request"]["id"], set()).update(kv_group["blocks"])
            holders.update(kv_group["blocks"])
    shown = {row[0]: (int(row[3]), int(row[4])) for row in page.table("request", "outputs")}
    assert shown == {
        name: (len(blocks), sum(holders[block] > 1 for block in blocks))
        for name, blocks in owners.items()
    }
    assert len(shown) == len(moment.holdings) > 1 and any(count > 1 for count in holders.values())


def test_the_page_gives_decisions_with_reasons(page: PageReader, result: SimulationResult) -> None:
    shown = [row[1] for row in page.table("time (s)", "decision")]
    notable = [str(one) for _, one in result.decisions if one.what.value != "admit"]
    assert shown == notable[: len(shown)] and len(shown) == min(200, len(notable))
    assert any(text.startswith("recompute") for text in shown)


def test_the_csv_files_hold_the_result(written: Path, result: SimulationResult) -> None:
    with (written / "requests.csv").open(encoding="utf-8") as file:
        requests = list(csv.DictReader(file))
    served = [row for row in requests if not row["refused"]]
    assert len(served) == result.num_finished and len(requests) - len(served) == 1
    assert sum(int(row["num_output_tokens"]) for row in served) == result.tokens_out
    assert sum(int(row["num_recomputes"]) for row in served) == result.preemptions.recomputes
    with (written / "series.csv").open(encoding="utf-8") as file:
        series = list(csv.DictReader(file))
    busy = sum(float(row["seconds"]) for row in series)
    running = sum(float(row["running"]) * float(row["seconds"]) for row in series)
    assert busy == pytest.approx(result.busy_seconds)
    assert running / busy == pytest.approx(result.mean_running)
    with (written / "decisions.csv").open(encoding="utf-8") as file:
        decisions = list(csv.DictReader(file))
    assert [row["what"] for row in decisions] == [d.what.value for _, d in result.decisions]


def test_the_trace_has_every_request_and_decision(written: Path, result: SimulationResult) -> None:
    trace = json.loads((written / "trace.json").read_text(encoding="utf-8"))
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    whole = {event["name"]: event for event in bars if event["name"].startswith("request ")}
    assert len(whole) == result.num_finished
    for record in result.records:
        if record.metrics is not None:
            event = whole[f"request {record.request_id}"]
            assert event["ts"] == pytest.approx(1e6 * record.metrics.arrival_time, abs=1)
            assert event["dur"] == pytest.approx(1e6 * record.metrics.e2e_latency, abs=1)
    marks = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert len(marks) == len(result.decisions)
    kv_groups: dict[int, list[tuple[float, float]]] = {}
    for event in whole.values():
        kv_groups.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in kv_groups.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1 for a, b in pairwise(spans))


def test_the_json_holds_the_summary(written: Path, result: SimulationResult) -> None:
    values = json.loads((written / "result.json").read_text(encoding="utf-8"))
    assert values["num_finished"] == result.num_finished
    assert values["latency"]["ttft"]["mean"] == result.ttft.mean


def test_the_same_result_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write(tmp_path, *simulated())
    for file in sorted(written.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
