"""The machine that figures were taken on, and the memory that a process took at most."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_READ = 256 << 20  # bytes


def shortest(work: Callable[[], object], least: float = 0.5) -> float:
    """The shortest of the times that ``work`` takes, run for ``least`` seconds and three times."""
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def read_bandwidth() -> float:
    """Bytes a second, over all of torch's threads, of a plain sum over 256 MiB."""
    import torch

    data = torch.ones(_READ // 4, dtype=torch.float32)
    return _READ / shortest(lambda: data.sum())


def cpu_model() -> str:
    """The processor's name, with the numbers that tell generations apart."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    family = named.get("cpu family")
    suffix = f" (family {family}, model {named.get('model')})" if family else ""
    return named.get("model name", platform.machine()) + suffix


class OthersShare:
    """How much of the machine's processor time others had since this was made."""

    def __init__(self) -> None:
        self._before = _processor_seconds()

    def so_far(self) -> float:
        """Share of all cores' time, 0 to 1, that went to others than this process and its own."""
        total, busy, own = (
            now - then for now, then in zip(_processor_seconds(), self._before, strict=True)
        )
        return max(0.0, busy - own) / total if total > 0 else 0.0


def _processor_seconds() -> tuple[float, float, float]:
    """Processor seconds of all cores; of those, busy ones; of those, of this process and its
    children.
    """
    times, process = psutil.cpu_times(), psutil.Process()
    own = seconds_of_tree(process)
    # A guest's time is in user already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return total, total - idle, own


def seconds_of_tree(process: psutil.Process) -> float:
    """Processor seconds of a process, of those below it, and of their children that have ended."""
    try:
        below = process.children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    return _seconds(process) + sum(map(_seconds, below))


def _seconds(process: psutil.Process) -> float:
    """Processor seconds of a process and its ended children; none if it has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system
