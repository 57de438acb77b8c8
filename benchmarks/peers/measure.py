"""One measurement: a command alone on the machine, what it reports, and who else was there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.peers.cache import PeerError, last_line
from benchmarks.peers.workloads import Workload
from quire.tools.doctor.machine import OthersShare
from quire_lab.bench.processes import stop

REPOSITORY = Path(__file__).parents[2]
_PATIENCE = 1800.0  # seconds that a run may take, loading included


class Sample(NamedTuple):
    """A run that did all that it was asked."""

    seconds: float  # from the first request to the last token
    output_tokens: int
    peak_rss_bytes: int
    others: float  # cores that other processes and machines had meanwhile
    report: Mapping[str, Any]

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds


class Failure(NamedTuple):
    """A run, or all of a system's, that came to nothing."""

    reason: str


def measure(
    command: Sequence[str], environment: Mapping[str, str], workload: Workload, log: Path
) -> Sample | Failure:
    """Run the command in a process of its own, and check that it served all of the workload."""
    others = OthersShare()
    try:
        report = read_report(_output(command, environment, log), workload)
    except PeerError as error:
        return Failure(str(error))
    cores = others.so_far() * (psutil.cpu_count() or 1)
    return Sample(
        report["seconds"], report["output_tokens"], report["peak_rss_bytes"], cores, report
    )


def read_report(output: str, workload: Workload) -> dict[str, Any]:
    """The last line of the output; PeerError if it is none, or of other numbers of tokens."""
    try:
        report: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        found = (report["prompt_tokens"], report["output_tokens"])
    except (ValueError, LookupError, TypeError) as error:
        raise PeerError(f"no report: {last_line(output)}") from error
    asked = (workload.prompt_tokens, workload.output_tokens)
    if found != asked:
        raise PeerError(
            f"{found[0]:,} tokens in and {found[1]:,} out, where {asked[0]:,} and {asked[1]:,} "
            "were asked for"
        )
    return report


def _output(command: Sequence[str], environment: Mapping[str, str], log: Path) -> str:
    """What the command prints. Raises PeerError if it fails, or takes too long."""
    with log.open("a+", encoding="utf-8", errors="replace") as errors:
        print("$", *command, file=errors, flush=True)
        begins = errors.tell()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=REPOSITORY,
        )
        try:
            output, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"not done after {_PATIENCE:.0f} s") from error
        finally:
            stop(process)  # a runner takes its server along
        if process.returncode:
            errors.seek(begins)
            said = last_line(output + errors.read())
            raise PeerError(f"ended with {process.returncode}: {said}")
        print(output, file=errors)
    return output
