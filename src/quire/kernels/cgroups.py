"""The control groups of this process, which may grant less than the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SYSTEM = Path("/sys")
PROCESS = Path("/proc/self")


def directories(controller: str, system: Path, process: Path) -> Iterator[Path]:
    """The directories of this process's own group and those above it, in version 2 or in
    ``controller``'s hierarchy of version 1.
    """
    root = system / "fs/cgroup"
    try:
        entries = (process / "cgroup").read_text().splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            yield directory
            if directory == base:
                break
