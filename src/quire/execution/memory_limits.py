"""Every limit that the system sets to this process's memory, and what of it is for a pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quire.kernels.cgroups import PROCESS, SYSTEM, directories

_NO_LIMIT = 2**62  # version 1 of cgroups writes what is nearly 2^63

_GROUP_LIMITS = (  # of memory or, in version 1, also of memory and swap together
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),  # beyond it a process hardly gets on
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
)
_PROCESS_LIMITS = (  # as /proc/self/limits calls them, and the field that tells what is taken
    ("Max address space", "VmSize", "ulimit -v"),
    ("Max data size", "VmData", "ulimit -d"),
)

FREE_MEMORY_SHARE = 0.5
"""Of main memory that is free once weights are loaded, the default pool takes at most this share;
the rest is for files, for other processes, and for what computing needs."""


class MemoryBudget(NamedTuple):
    """Memory for the KV pool."""

    free: int  # bytes
    share: float  # of them that the pool takes if nobody says otherwise
    beside: int = 0  # bytes that are left for computing and for requests, whatever is asked for


class MemoryLimit(NamedTuple):
    """A limit to this process's memory.

    group: the cgroup whose processes share the limit; None: it is no cgroup's.
    alone: whether no other process's memory counts.
    """

    name: str  # for people
    size: int
    left: int
    group: Path | None = None
    alone: bool = False


def memory_limits(system: Path = SYSTEM, process: Path = PROCESS) -> list[MemoryLimit]:
    """The limits of cgroups (version 1 or 2), of NUMA nodes, and of the process itself (ulimit)."""
    return [
        *(limit for group in directories("memory", system, process) for limit in _of_group(group)),
        *_of_nodes(system, process),
        *_of_process(process),
    ]


def tightest(system: Path = SYSTEM, process: Path = PROCESS) -> MemoryLimit | None:
    """The limit that leaves least; None: there is none."""
    return min(memory_limits(system, process), key=lambda limit: limit.left, default=None)


def _of_group(group: Path) -> Iterator[MemoryLimit]:
    """What its processes have read of files counts as free: the system drops it when memory is
    needed. Not so what is read of files that lie in memory, or is locked there."""
    for limit, usage in _GROUP_LIMITS:
        size, used = _number(group / limit), _number(group / usage)
        if size is not None and size < _NO_LIMIT:
            total = "total_" if limit.endswith("_in_bytes") else ""
            taken = max(0, (used or 0) - _of_files(group, total))
            yield MemoryLimit(f"{limit} of {group}", size, size - taken, group)


def _of_files(group: Path, total: str) -> int:
    """Bytes of pages that hold what files do; 0 where the system does not tell."""
    fields = _fields(group / "memory.stat")
    return sum(fields.get(f"{total}{kind}_file", 0) for kind in ("active", "inactive"))


def _of_nodes(system: Path, process: Path) -> Iterator[MemoryLimit]:
    """The limit of the NUMA nodes that memory may come from, where those are not all."""
    nodes = {
        int(path.name.removeprefix("node")): path
        for path in (system / "devices/system/node").glob("node[0-9]*")
    }
    allowed = _allowed_nodes(process)
    if allowed is None or allowed.issuperset(nodes):
        return
    size = left = 0
    for number in allowed.intersection(nodes):
        # "Node 0 MemFree:  6882200 kB"
        told = _fields(nodes[number] / "meminfo", skip=2)
        size += told.get("MemTotal", 0)
        left += sum(told.get(name, 0) for name in ("MemFree", "Active(file)", "Inactive(file)"))
    named = ", ".join(map(str, sorted(allowed)))
    yield MemoryLimit(f"NUMA nodes {named} (cpuset.mems, numactl --membind)", size, left)


def _allowed_nodes(process: Path) -> set[int] | None:
    """The NUMA nodes that the cpuset and numactl --membind allow; None: unknown."""
    text = _text(process / "status")
    lists = [line.partition(":")[2] for line in text.splitlines() if "Mems_allowed_list" in line]
    # "5600f4e1d000 bind:0-1 file=/usr/bin/python3 ...": the first part has no policy of its own.
    policy = next(iter(_text(process / "numa_maps", first_line=True).split()[1:2]), "")
    if policy.startswith("bind"):
        lists.append(policy.rpartition(":")[2])
    sets = [found for found in map(_numbers, lists) if found]
    return set.intersection(*sets) if sets else None


def _of_process(process: Path) -> Iterator[MemoryLimit]:
    taken = _fields(process / "status")
    for line in _text(process / "limits").splitlines():
        for name, field, told in _PROCESS_LIMITS:
            soft = line.removeprefix(name).split()
            if line.startswith(name) and soft and soft[0].isdigit() and field in taken:
                size = int(soft[0])
                yield MemoryLimit(told, size, size - taken[field], alone=True)


def _numbers(ranges: str) -> set[int]:
    """The numbers in "0-2,5"; empty for any other form."""
    found: set[int] = set()
    try:
        for part in ranges.strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return found


def _fields(path: Path, skip: int = 0) -> dict[str, int]:
    """Bytes by name, of a file with a line each: "name 5" or "name: 5 kB", after some words."""
    fields: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, *rest = line.split()[skip:] or [""]
        if rest and rest[0].isdigit():
            fields[name.rstrip(":")] = int(rest[0]) * (1024 if rest[1:] == ["kB"] else 1)
    return fields


def _number(path: Path) -> int | None:
    """The number in a file; None if it says "max", or cannot be read."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path, *, first_line: bool = False) -> str:
    """The text of a file; empty if it cannot be read: then the system tells no such limit."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline() if first_line else file.read()
    except OSError:
        return ""
