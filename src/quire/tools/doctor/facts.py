"""The facts about this machine, gathered."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from typing import Any

import psutil

from quire.core.errors import reason
from quire.core.version import __version__
from quire.execution.free_memory import free_memory
from quire.execution.memory_limits import tightest
from quire.http.config.server import most_connections
from quire.kernels.compiled import KERNELS, why_missing
from quire.kernels.threads import cpu_quota, usable_cores
from quire.models.hub import cache_directory, why_unreached
from quire.tools.doctor import system
from quire.tools.doctor.machine import OthersShare, cpu_model, read_bandwidth

_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND",
              "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The facts of this machine that decide speed. Bytes, and bytes per second; None: unknown, or
    no limit.
    """

    versions: str
    processor: str
    cpus: int  # of the machine, hardware threads counted
    cores: int  # that this process may use, whole ones
    cpu_quota: float | None  # CPUs that the container grants
    numa_nodes: int
    governor: str | None
    memory: int
    free: int
    memory_limit: int | None  # of cgroups, NUMA nodes or ulimit, the one that leaves least
    bandwidth: float | None
    others_share: float  # of the processor's time, while that was measured
    huge_pages: str | None
    kernels: str | None  # the build that computes; None: there are none, and PyTorch does
    refusals: dict[str, str]  # better builds, and why they do not run
    kernels_missing: str | None  # why there are none
    threads: int
    variables: dict[str, str]  # that OpenMP reads
    gpus: list[str]
    torch_build: str  # its CUDA's version, or cpu; empty: there is no PyTorch
    uses_gpu: bool
    most_connections: int | None  # that the limit of open files leaves
    models: str
    models_free: int
    limited_by: str = ""  # what sets ``memory_limit``
    namesakes: tuple[str, ...] = ()  # other distributions that install a module ``quire``
    torch_missing: str | None = None  # why PyTorch cannot be loaded
    hub_missing: str | None = None  # why no model can be downloaded now


def gather() -> Facts:
    """Takes a second or two: memory is read for half of one, and Hugging Face is asked."""
    models = cache_directory()
    limit = tightest()
    existing = next(path for path in (models, *models.absolute().parents) if path.exists())
    return Facts(
        processor=cpu_model(),
        cpus=os.cpu_count() or 1,
        cores=usable_cores(),
        cpu_quota=cpu_quota(),
        numa_nodes=system.numa_nodes(),
        governor=system.governor(),
        memory=int(psutil.virtual_memory().total),
        free=free_memory(),
        memory_limit=None if limit is None else limit.size,
        huge_pages=system.huge_pages(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        gpus=system.gpus(),
        most_connections=most_connections(),
        models=str(models),
        models_free=shutil.disk_usage(existing).free,
        limited_by="" if limit is None else limit.name,
        namesakes=system.namesakes(),
        hub_missing=why_unreached(),
        **_computing(),
    )


def _computing() -> dict[str, Any]:
    """The facts that PyTorch tells, or what holds without it."""
    system_name = f"{platform.system()} {platform.release()}"
    versions = f"Quire {__version__}, Python {platform.python_version()}, {system_name}, torch"
    try:
        import torch
    except (ImportError, OSError) as error:  # it is not installed, or something it needs is not
        why = reason(error)
        return {
            "versions": f"{versions} none", "torch_missing": why, "torch_build": "",
            "uses_gpu": False, "threads": 0, "bandwidth": None, "others_share": 0.0,
            "kernels": None, "refusals": {}, "kernels_missing": why,
        }  # fmt: skip
    kernels, refusals, missing = _kernels()
    threads = min(torch.get_num_threads(), usable_cores())
    torch.set_num_threads(threads)
    others = OthersShare()
    return {
        "versions": f"{versions} {torch.__version__}",
        "torch_build": str(torch.version.cuda or "cpu"),
        "uses_gpu": torch.cuda.is_available(),
        "threads": threads,
        "bandwidth": read_bandwidth(),
        "others_share": others.so_far(),
        "kernels": kernels,
        "refusals": refusals,
        "kernels_missing": missing,
    }


def _kernels() -> tuple[str | None, dict[str, str], str | None]:
    """The best build of the C++ kernels that runs, why no better one does, or why there is none."""
    missing = why_missing(KERNELS)
    if missing is not None:
        return None, {}, missing
    from quire.kernels import cpu
    from quire.kernels.instructions import choose

    chosen = choose("auto", cpu.all_builds(), cpu.refusals())
    return chosen.name, dict(chosen.refusals), None
