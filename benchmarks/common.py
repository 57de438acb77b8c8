"""What benchmarks share: flags and the printing of reports."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from quire_lab.bench.report import describe, machine_facts

_LIMITS = Path(__file__).with_name("limits.py")


def flags_of(description: str) -> argparse.ArgumentParser:
    """The parser of a script, whose ``--help`` is its docstring as it is written."""
    return argparse.ArgumentParser(
        allow_abbrev=False,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_common_flags(parser: argparse.ArgumentParser, rounds: int = 3) -> None:
    parser.add_argument("model", nargs="?", help="directory or name (default: the demonstration)")
    parser.add_argument("--rounds", type=int, default=rounds, help="medians of (%(default)s)")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def read_bandwidth(threads: int | None = None) -> float:
    """Bytes a second, measured in a new process."""
    command = [sys.executable, str(_LIMITS), "--bandwidth-only", "--json"]
    chosen = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **chosen}
    )
    found: float = json.loads(done.stdout)["read_bytes_per_second"]
    return found


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
