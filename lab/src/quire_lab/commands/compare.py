"""``quire compare``: compares a recording of a server with its simulation."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.tools.commands.command import Command
from quire.tools.commands.text import table
from quire_lab.calibration.comparison import Comparison, Figure, compare
from quire_lab.calibration.recorded import Recording, open_recording
from quire_lab.calibration.steps import UNITS
from quire_lab.calibration.verdict import verdict
from quire_lab.commands.setup import named_model
from quire_lab.commands.text import number, percent, seconds
from quire_lab.simulation import CostModel, Roofline, find_machine
from quire_lab.simulation.calibrated import read_calibration

_CLOCKS = {"wall": "the clock", "cpu": "the processor"}


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "For instance: quire serve --record-trace t.jsonl --record-steps s.csv, until Ctrl-C; then "
        "quire compare t.jsonl --steps s.csv."
    )
    parser.add_argument(
        "recording", metavar="FILE", help="trace that quire serve --record-trace wrote"
    )
    parser.add_argument(
        "--steps", metavar="FILE", help="CSV that the same server wrote with --record-steps: it "
        "shows why recording and simulation differ",
    )  # fmt: skip
    parser.add_argument(
        "--unit", choices=UNITS, default="wall", help="time of steps: wall, elapsed; cpu, of the "
        "processor, for a machine that was shared (default: %(default)s)",
    )  # fmt: skip
    group = parser.add_argument_group(
        "costs", "How long simulated steps take; by default as long as the recorded ones, so that "
        "only scheduling and memory are tested.",
    )  # fmt: skip
    group.add_argument(
        "--cost-model", metavar="FILE", help="step times that quire calibrate measured"
    )
    group.add_argument("--machine", metavar="NAME", help="by the machine's figures; with --model")
    group.add_argument("--model", metavar="MODEL", help="the model's name for quire simulate")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def compare_recording(arguments: argparse.Namespace) -> int:
    steps = None if arguments.steps is None else Path(arguments.steps)
    recording = open_recording(Path(arguments.recording), steps, arguments.unit)
    costs, told = _costs(arguments, recording)
    found = compare(recording, costs)
    if arguments.json:
        print(json.dumps({"costs": told, **comparison_values(found)}, indent=1))
    else:
        print("\n".join(describe(found, told)))
    return 0


def _costs(arguments: argparse.Namespace, recording: Recording) -> tuple[CostModel, str]:
    """How long steps take, and the source of that."""
    if (arguments.machine is None) != (arguments.model is None):
        raise ConfigError("machine and model need each other: a step's time depends on both")
    if arguments.machine is not None:
        if arguments.cost_model is not None:
            raise ConfigError("cost_model and machine contradict each other")
        model, machine = named_model(arguments.model), find_machine(arguments.machine)
        costs = Roofline(model, machine, 1, recording.limits.block_size)
        return costs, f"{model.name} on {machine.name}, by its data sheet"
    if arguments.cost_model is not None:
        calibration = read_calibration(Path(arguments.cost_model))
        told = f"{arguments.cost_model}, from {calibration.measured}"
        if calibration.unit != recording.unit:
            told += f", in seconds of {_CLOCKS[calibration.unit]}"
        return calibration.costs, told
    if not recording.steps:
        raise ConfigError(
            "step times are missing: give cost_model, or steps (of quire serve --record-steps), or "
            "machine and model"
        )
    from quire_lab.calibration.fit import fit  # with numpy

    return fit([step.timed("wall") for step in recording.steps]), "fitted to the recorded steps"


def describe(found: Comparison, costs: str) -> list[str]:
    """The comparison as text."""
    recording = found.recording
    lines = [
        f"{recording.model}: {len(recording.requests):,} requests in {seconds(recording.seconds)} "
        f"of {_CLOCKS[recording.unit]}",
        f"  costs: {costs}",
        "",
        *verdict(found),
        "",
        *_figures(found),
    ]
    if found.kinds:
        lines += ["", *_kinds(found)]
    return [*lines, "", *_stretches(found)]


def _figures(found: Comparison) -> list[str]:
    equal = {one.name: one.off for one in found.equal}
    head = ["", "recorded", "simulated", "off by", "half within", "90 % within"]
    rows = [[*head, *["at equal steps"] * bool(equal)]]
    for one in found.figures:
        cells = [_amount(one, one.real), _amount(one, one.simulated), _off(one.off)]
        cells += [percent(one.half), percent(one.most)]
        rows.append([one.name, *cells, *[_off(equal.get(one.name))] * bool(equal)])
    return table(rows, "")


def _amount(figure: Figure, value: float) -> str:
    return seconds(value) if figure.unit == "s" else f"{value:,.0f}"


def _off(share: float | None) -> str:
    return "-" if share is None else f"{share:+.1%}"


def _kinds(found: Comparison) -> list[str]:
    rows = [["the recorded steps", "number", "took", "cost", "off by"]]
    for one in found.kinds:
        off = _off(one.costed / one.real - 1)
        cells = [f"{one.num_steps:,}", seconds(one.real), seconds(one.costed), off]
        rows.append([one.name, *cells])
    return table(rows, "")


def _stretches(found: Comparison) -> list[str]:
    rows = [["came at", "requests", "TTFT recorded", "simulated", "off by", "steps took / cost"]]
    for one in found.stretches:
        off = _off(one.simulated / one.real - 1 if one.real else None)
        took = "-" if one.steps is None else f"{one.steps:.2f}"
        name = f"{number(one.begin)} to {number(one.end)} s"
        cells = [f"{one.num_requests:,}", seconds(one.real), seconds(one.simulated), off, took]
        rows.append([name, *cells])
    return table(rows, "")


def comparison_values(found: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    recording = found.recording
    return {
        "model": recording.model,
        "unit": recording.unit,
        "num_requests": len(recording.requests),
        "num_left_out": recording.num_left_out,
        "seconds": recording.seconds,
        "agrees": found.agrees if found.is_enough else None,
        "verdict": " ".join(verdict(found)),
        "figures": [{**asdict(one), "off": one.off, "agrees": one.agrees} for one in found.figures],
        "steps": [one._asdict() for one in found.kinds],
        "steps_over_costs": found.speed,
        "figures_at_equal_steps": [
            {**asdict(one), "off": one.off, "agrees": one.agrees} for one in found.equal
        ],
        "clock_over_processor": found.disturbed,
        "preparing_mean": recording.preparing,
        "stretches": [{**one._asdict(), "agrees": one.agrees} for one in found.stretches],
    }


COMMAND = Command(add_compare, compare_recording)
