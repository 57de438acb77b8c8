"""One case in a process of its own, which may crash, take long or take much."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

from fuzz.attempt import attempt, prepare
from fuzz.case import Case

_PATIENCE = 40  # times the processor's time that a case may take, by a clock on the wall
_PAGE = resource.getpagesize()
_LAST_WORDS = 400  # characters of an error


class Limits(NamedTuple):
    """seconds: of the processor. memory: bytes that a case may take."""

    seconds: float = 10.0
    memory: int = 2 << 30


class Outcome(NamedTuple):
    """What came of a case.

    kind: served, refused; crashed, slow, large or wrong, which are findings.
    why: in words; where it was not served.
    stage: the last one that it was at.
    seconds: of a processor. memory: bytes that it took.
    """

    kind: str
    why: str
    stage: str
    seconds: float
    memory: int

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("served", "refused")

    def like(self, other: Outcome) -> bool:
        """Whether both fail alike."""
        if self.kind == "wrong":
            return other.kind == "wrong" and self.why.split(":")[0] == other.why.split(":")[0]
        return (self.kind, self.stage) == (other.kind, other.stage)


def run(case: Case, seed: int, limits: Limits) -> Outcome:
    """The process must have no other threads."""
    prepare(case)
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reader)
        _be_the_child(case, seed, limits, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    return _outcome(told, status, usage, limits)


def _be_the_child(case: Case, seed: int, limits: Limits, writer: int) -> None:
    """Never returns."""
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    before = _resident()

    def tell(stage: str) -> None:
        os.write(writer, f"\n@{json.dumps(['stage', stage])}\n".encode())

    try:
        _limit(limits)
        tell(f"start {before}")
        came = attempt(case, seed, tell)
        kind, _, why = came.partition(": ")
    except MemoryError as error:
        kind, why = "large", f"MemoryError: {error}"
    except BaseException as error:  # a panic of Rust's is one
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind, why = "wrong", f"{type(error).__name__} in {last.name}: {str(error)[:_LAST_WORDS]}"
    os.write(writer, f"\n@{json.dumps([kind, why])}\n".encode())
    os._exit(0)


def _limit(limits: Limits) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.memory, mapped + limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Both signals end the process where nobody handles them, whoever holds Python's lock.
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds * _PATIENCE)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _outcome(told: str, status: int, usage: resource.struct_rusage, limits: Limits) -> Outcome:
    lines = [line for line in told.splitlines() if line]
    marked = [json.loads(line[1:]) for line in lines if line.startswith("@[")]
    others = " ".join(line for line in lines if not line.startswith("@["))[-_LAST_WORDS:]
    stages = [what for kind, what in marked if kind == "stage"]
    before = int(stages[0].split()[1])
    memory = max(0, usage.ru_maxrss * 1024 - before)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = f"{signal.Signals(number).name} {others}".strip()
        kind = "slow" if number in (signal.SIGPROF, signal.SIGALRM) else "crashed"
        if "memory allocation" in others or memory > limits.memory // 2:
            kind = "large"
    else:
        kind, why = marked[-1]
    return Outcome(kind, why, stages[-1], seconds, memory)
