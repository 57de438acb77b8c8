"""A recording against its simulation, where it is known what every step took."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest
from quire.tools.cli import main
from quire_lab.calibration.comparison import Comparison, compare
from quire_lab.calibration.recorded import open_recording
from quire_lab.calibration.steps import read_steps
from quire_lab.calibration.verdict import verdict
from quire_lab.simulation.calibrated import CalibratedCosts
from support.recorded_runs import Files, record

COSTS = CalibratedCosts(
    knots=(1, 48),
    token_seconds=(2e-3, 9e-3),
    per_seq=1e-4,
    context_knots=(0,),
    per_context=(1e-6,),
    per_prefill_pair=1e-7,
    per_draft=0.0,
    per_draft_pair=0.0,
    per_wake=0.0,
    per_woken_token=0.0,
    per_copied_block=0.0,
    per_swapped_block=0.0,
)


def requests() -> list[TraceRequest]:
    """More than the pool takes at times, and rests between."""
    random, time, found = Random(3), 0.0, []
    for number in range(40):
        time += random.choice([0.001, 0.004, 0.02, 0.6 if number % 9 == 0 else 0.01])
        found.append(TraceRequest(time, random.randrange(2, 60), random.randrange(2, 40)))
    return found


def unsteady() -> Callable[[], float]:
    random = Random(4)
    return lambda: random.choice([1.0, 1.3, 2.0, 9.0])


def compared(files: Files, costs: CalibratedCosts = COSTS, unit: str = "wall") -> Comparison:
    return compare(open_recording(files.trace, files.steps, unit), costs)


def off(found: Comparison) -> dict[str, float | None]:
    return {one.name: one.off for one in found.figures}


def test_a_recording_is_its_simulation_where_steps_take_what_they_cost(tmp_path: Path) -> None:
    found = compared(record(tmp_path, requests(), COSTS))
    assert found.figure("preemptions").real > 3 and found.figure("in line, mean").real > 0.01
    assert found.figure("prompt tokens in the cache").real >= 0
    assert off(found) == {name: pytest.approx(0.0, abs=1e-3) for name in off(found)}
    assert found.agrees and found.decides_alike
    assert found.speed == pytest.approx(1.0) and found.disturbed == pytest.approx(1.0, abs=1e-4)
    assert verdict(found)[0].startswith("The simulation agrees with the recording")
    assert sum(one.num_requests for one in found.stretches) == 40
    assert {kind.name for kind in found.kinds} == {"after a rest", "with prompts", "decoding only"}


def test_it_agrees_only_if_every_row_does(tmp_path: Path) -> None:
    found = compared(record(tmp_path, requests(), COSTS))
    figures = tuple(
        replace(one, simulated=1.296 * one.real) if one.name == "TTFT, p90" else one
        for one in found.figures
    )
    part = replace(found, figures=figures)
    assert not part.agrees and part.means_agree
    first, second, *_ = verdict(part)
    assert first.startswith("The simulation agrees in part with the recording: TTFT, TPOT")
    assert second == "Not all agree: the p90 TTFT is 29.6% too long."


def test_costs_that_are_wrong_are_found_to_be_what_is_wrong(tmp_path: Path) -> None:
    found = compared(
        record(tmp_path, requests(), COSTS), replace(COSTS.times(0.7), per_context=(0,))
    )
    assert not found.agrees and found.decides_alike
    assert found.speed is not None and found.speed > 1.4
    words = " ".join(verdict(found))
    assert "the mean TPOT is" in words and "too short" in words
    assert "the order of requests is simulated right, and the costs are not" in words


def test_a_server_that_schedules_otherwise_is_told_from_one_that_is_slow(tmp_path: Path) -> None:
    files = record(tmp_path, requests(), COSTS)
    header, *rows = files.trace.read_text().splitlines()
    values = json.loads(header)
    values["engine"]["limits"]["max_num_seqs"] = 2
    files.trace.write_text("\n".join([json.dumps(values), *rows, ""]))
    found = compared(files)
    assert not found.agrees and not found.decides_alike
    assert "costs are not all that is simulated wrong" in " ".join(verdict(found))


def test_few_requests_are_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = record(tmp_path, requests()[:19], COSTS)
    few, wrong = compared(files), compared(files, COSTS.times(0.5))
    assert few.agrees and not few.is_enough
    assert verdict(few)[0].startswith("No verdict: 19 requests are too few, 20 are the least. Of ")
    assert not wrong.agrees and "No verdict" in verdict(wrong)[0] and "TTFT is" in verdict(wrong)[1]
    assert main(["compare", str(files.trace), "--steps", str(files.steps), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agrees"] is None
    assert compared(record(tmp_path, requests()[:20], COSTS)).is_enough
    one = compared(record(tmp_path, [TraceRequest(0.0, 10, 1)], COSTS))
    assert "1 request is too few" in verdict(one)[0] and "TPOT" not in verdict(one)[0], "has none"


def test_who_is_served_and_not_in_the_simulation_is_told(tmp_path: Path) -> None:
    """Its means would be of those who did not wait long."""
    files = record(tmp_path, requests(), COSTS)
    header, *rows = files.trace.read_text().splitlines()
    values = json.loads(header)
    values["engine"]["limits"]["max_queue_time"] = 0.05
    files.trace.write_text("\n".join([json.dumps(values), *rows, ""]))
    found = compared(files)
    refused = found.figure("requests refused").simulated
    assert 1 < refused < 40 and found.num_compared == 40 - refused and not found.agrees
    words = " ".join(verdict(found))
    assert f"requests refused is {refused:.0f} for none" in words
    assert f"the simulation refuses {refused:.0f}; the first waited 0.0" in words


def test_steps_of_a_part_of_the_time_are_refused(tmp_path: Path) -> None:
    files = record(tmp_path, requests(), COSTS)
    header, *rows = files.steps.read_text().splitlines()
    for part in (rows[:10], rows[-10:]):
        files.steps.write_text("\n".join([header, *part, ""]))
        with pytest.raises(ConfigError, match=r"tells of steps from .* s: it is not whole"):
            compared(files)


def test_processor_time_does_not_depend_on_who_else_wants_the_cores(tmp_path: Path) -> None:
    files = record(tmp_path, requests(), COSTS, unsteady())
    by_clock, by_processor = compared(files), compared(files, unit="cpu")
    assert not by_clock.agrees and by_clock.decides_alike
    assert by_clock.disturbed is not None and by_clock.disturbed > 2
    assert any("they had to wait for cores" in line for line in verdict(by_clock))
    assert by_processor.agrees and by_processor.speed == pytest.approx(1.0, abs=1e-4)
    assert off(by_processor) == {name: pytest.approx(0.0, abs=2e-3) for name in off(by_processor)}


def test_steps_are_written_as_they_were(tmp_path: Path) -> None:
    steps = read_steps(record(tmp_path, requests(), COSTS, unsteady()).steps)
    assert steps[0].begin == pytest.approx(1.5 + requests()[0].arrival)
    ended = 0.0
    for step in steps:
        assert step.begin is not None and step.cpu_seconds is not None
        rested = step.begin > ended + 1e-6
        assert step.work.woken == rested, "a step goes on from the one before it, or after a rest"
        assert step.cpu_seconds == pytest.approx(COSTS.seconds(step.work), abs=1e-6)
        assert step.seconds >= step.cpu_seconds - 1e-6
        ended = step.begin + step.seconds


def test_the_command_tells_people_and_programs_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = record(tmp_path, requests(), COSTS)
    command = ["compare", str(files.trace), "--steps", str(files.steps)]
    assert main(command) == 0
    text = capsys.readouterr().out
    for words in ("fake: 40 requests in", "fitted to the recorded steps", "TTFT, mean",
                  "at equal steps", "decoding only", "agrees with the recording"):  # fmt: skip
        assert words in text
    assert main([*command, "--unit", "cpu", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["unit"] == "cpu" and values["agrees"] and values["num_requests"] == 40
    assert values["steps_over_costs"] == pytest.approx(1.0, abs=0.02)
    assert main(["compare", str(files.trace), "--model", "opt-125m", "--machine", "t4"]) == 0
    assert "opt-125m on t4, by its data sheet" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = record(tmp_path, requests()[:3], COSTS)
    trace, steps = str(files.trace), str(files.steps)
    old, bare, other = tmp_path / "old", tmp_path / "bare", tmp_path / "other"
    lines = files.trace.read_text().splitlines()
    old.write_text('{"quire_trace": 1, "block_size": 4}\n')
    rows = [{**json.loads(line), "seen": None} for line in lines[1:]]
    bare.write_text("\n".join([lines[0], *map(json.dumps, rows), ""]))
    other.write_text("begin,seconds,decode_seqs\n900,0.1,1\n")
    for arguments, message in (
        ([trace], "step times are missing"),
        ([trace, "--unit", "cpu"], "unit cpu needs the steps"),
        ([trace, "--steps", str(other)], "holds no step of the time of the requests"),
        ([str(old), "--steps", steps], "does not tell how the engine was set up"),
        ([str(bare), "--steps", steps], "does not tell what became of any request"),
        ([trace, "--model", "opt-125m"], "machine and model need each other"),
    ):
        assert main(["compare", *arguments]) == 1
        assert message in capsys.readouterr().err
    other.write_text(other.read_text().replace("900", "1.6"))
    with pytest.raises(ConfigError, match="has no column cpu_seconds"):
        open_recording(files.trace, other, "cpu")
