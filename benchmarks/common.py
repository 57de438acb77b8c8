"""What the benchmarks that start processes share: flags and the printing of reports."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from quire.bench.machine import machine_facts
from quire.bench.report import describe


def add_common_flags(parser: argparse.ArgumentParser, rounds: int = 3) -> None:
    parser.add_argument("model", nargs="?", help="directory or name (default: the demonstration)")
    parser.add_argument("--rounds", type=int, default=rounds, help="medians of (%(default)s)")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def middle(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of ``quire bench`` whose rate is the median."""
    rates = [report["output_tokens_per_second"] for report in reports]
    return reports[rates.index(statistics.median_low(rates))]


def show(results: dict[str, Any], as_json: bool) -> None:
    """Print reports of ``quire bench`` and single figures, by name, and what machine it was."""
    machine = machine_facts()
    if as_json:
        print(json.dumps({**results, "machine": machine}))
        return
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    for name, value in results.items():
        if isinstance(value, dict):
            print(f"\n{name}: {describe(value)}")
        else:
            print(f"\n{name}: {value:.3f}")
