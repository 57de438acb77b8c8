"""What the runners share: what they are asked to do, and the line they answer with.

Only the standard library: a peer's environment has nothing else for certain.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """A prompt, and exactly how many tokens to generate for it, greedily."""

    prompt: list[int]
    max_tokens: int

    @property
    def length(self) -> int:
        return len(self.prompt) + self.max_tokens


WARM_UP = Request(list(range(2000, 2032)), 8)
"""Served before the clock starts; it shares nothing with any workload."""


@dataclass(frozen=True)
class Job:
    """A workload for one model."""

    model: str
    requests: list[Request]
    threads: int
    cache_gib: int
    prefix_caching: bool
    program: str | None  # the server, where the peer is not a Python library

    @property
    def longest(self) -> int:
        return max(request.length for request in self.requests)


def read_job() -> Job:
    """From the command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--workload", required=True, type=Path)
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--cache-gib", required=True, type=int)
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--program")
    arguments = parser.parse_args()
    lines = arguments.workload.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return Job(
        arguments.model,
        [Request(row["prompt"], row["max_tokens"]) for row in rows],
        arguments.threads,
        arguments.cache_gib,
        arguments.prefix_caching,
        arguments.program,
    )


def answer(
    job: Job,
    outputs: Sequence[Sequence[int]],
    seconds: float,
    peak_rss_bytes: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Print the report, in the fields of ``quire bench``; or fail, if an answer is too short."""
    pairs = enumerate(zip(outputs, job.requests, strict=True))
    wrong = [(i, len(o), r.max_tokens) for i, (o, r) in pairs if len(o) != r.max_tokens]
    if wrong:
        request, came, asked = wrong[0]
        sys.exit(f"{len(wrong)} answers of another length; request {request}: {came} of {asked}")
    report = {
        "requests": len(outputs),
        "prompt_tokens": sum(len(request.prompt) for request in job.requests),
        "output_tokens": sum(map(len, outputs)),
        "seconds": seconds,
        "peak_rss_bytes": peak_rss_bytes or peak_rss(os.getpid()),
    }
    print(json.dumps({**report, **(facts or {})}), flush=True)


def peak_rss(pid: int) -> int:
    """The most bytes that a process has had resident."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
