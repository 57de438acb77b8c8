"""How many threads compute, and how they wait for each other."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path

from quire.kernels.cgroups import PROCESS, SYSTEM, directories

_SPINS = "1000"  # some ten microseconds: longer than the work between two barriers takes to start


def wait_briefly() -> None:
    """Let idle threads spin for microseconds, then sleep, unless the user has decided otherwise.

    By itself OpenMP spins for milliseconds. On cores that another process is using as well, each
    barrier then lasts until the system takes the core away from the spinning thread, and a step
    takes a hundred times as long. Never to spin costs a wake-up at each of a step's hundreds of
    barriers. OpenMP reads these variables once, when torch loads it; other runtimes than GNU's
    know only the first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def usable_cores(system: Path = SYSTEM, process: Path = PROCESS) -> int:
    """Cores that this process may use: of its affinity, and at most its cgroups' quota.

    Two hardware threads of one core count once, since they share the units for products.
    """
    cores = {_siblings(system, cpu) for cpu in _affinity()}
    return max(1, math.floor(min(len(cores), cpu_quota(system, process) or math.inf)))


def usable_cpus(system: Path = SYSTEM, process: Path = PROCESS) -> int:
    """Like ``usable_cores``, with each hardware thread counted."""
    return max(1, math.floor(min(len(_affinity()), cpu_quota(system, process) or math.inf)))


def shares_of_cores(count: int, system: Path = SYSTEM) -> list[set[int]] | None:
    """The CPUs of each of ``count`` processes of this machine; None: there are fewer cores.

    Neighbours in one NUMA node: with as many nodes as processes, each has one of its own.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0), key=lambda cpu: (_node(system, cpu), cpu)):
        cores.setdefault(_siblings(system, cpu), set()).add(cpu)
    if len(cores) < count:
        return None
    in_order = list(cores.values())
    bounds = [len(in_order) * share // count for share in range(count + 1)]
    return [set().union(*in_order[low:high]) for low, high in pairwise(bounds)]


def cpu_quota(system: Path = SYSTEM, process: Path = PROCESS) -> float | None:
    """CPUs that the cgroup of this process and those above it grant; None: all."""
    quota = min(map(_granted, directories("cpu", system, process)), default=math.inf)
    return None if math.isinf(quota) else quota


def _affinity() -> set[int]:
    """The CPUs that this process may use; all CPUs if the system does not say."""
    if hasattr(os, "sched_getaffinity") and not _bound_by_openmp():
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _bound_by_openmp() -> bool:
    """Whether OpenMP, when it was loaded, has bound the calling thread to one place.

    It makes as many threads as the process had CPUs before, and callers rely on that number.
    """
    asked = os.environ.get("OMP_PROC_BIND", "false").split(",")[0].strip().lower()
    return asked != "false"


def _node(system: Path, cpu: int) -> int:
    """The NUMA node of a CPU; 0 if the system does not say."""
    nodes = (system / f"devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    return min((int(node.name.removeprefix("node")) for node in nodes), default=0)


def _siblings(system: Path, cpu: int) -> str:
    """The name of a CPU's core; the CPU itself if the system does not say."""
    path = system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return path.read_text()
    except OSError:
        return str(cpu)


def _granted(directory: Path) -> float:
    """The CPUs that one cgroup grants, version 2 or 1; infinite without a limit."""
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text().strip()
            period = (directory / "cpu.cfs_period_us").read_text()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
