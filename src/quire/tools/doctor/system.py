"""What the system tells of itself, in files and by its tools. Never torch."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from quire.execution.memory_limits import tightest
from quire.kernels.cgroups import PROCESS, SYSTEM

_PATIENCE = 3.0  # seconds


def memory_limit(system: Path = SYSTEM, process: Path = PROCESS) -> int | None:
    """Bytes that this process is granted; None: no less than there are."""
    limit = tightest(system, process)
    return None if limit is None else limit.size


def huge_pages(system: Path = SYSTEM) -> str | None:
    """When the system gives huge pages to who did not reserve them: always, madvise or never."""
    text = _text(system / "kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text or "")
    return chosen and chosen[1]


def governor(system: Path = SYSTEM) -> str | None:
    """The policy for the processor's frequency."""
    return _text(system / "devices/system/cpu/cpu0/cpufreq/scaling_governor")


def numa_nodes(system: Path = SYSTEM) -> int:
    """Parts of the memory that are not equally near to all cores."""
    return max(1, len(list((system / "devices/system/node").glob("node[0-9]*"))))


def gpus() -> list[str]:
    """NVIDIA GPUs that the driver shows, with their memory."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def namesakes() -> tuple[str, ...]:
    """Other distributions that install a module ``quire``: there are such on the index."""
    records = ((one.metadata["Name"], one.read_text("RECORD") or "") for one in distributions())
    return tuple(
        sorted({name for name, files in records if "\nquire/" in f"\n{files}"} - {"quire-llm"})
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
