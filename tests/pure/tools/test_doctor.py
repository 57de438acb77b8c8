"""``quire doctor``: what is read of the system, and what is advised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.tools.commands.doctor import describe
from quire.tools.doctor import system
from quire.tools.doctor.advice import advise
from quire.tools.doctor.facts import Facts

GIB = 2**30
HEALTHY = Facts(
    versions="Quire", processor="a fast one", cpus=8, cores=4, cpu_quota=None, numa_nodes=1,
    governor="performance", memory=32 * GIB, free=30 * GIB, memory_limit=None, bandwidth=GIB * 40,
    others_share=0.01, huge_pages="madvise", kernels="avx512",
    refusals={"amx": "the processor has no amx_tile"}, kernels_missing=None, threads=4,
    variables={"OMP_WAIT_POLICY": "passive"}, gpus=[], torch_build="cpu", uses_gpu=False,
    most_connections=None, models="/cache", models_free=GIB,
)  # fmt: skip


def test_a_healthy_machine_needs_no_advice() -> None:
    assert advise(HEALTHY) == []
    text = "\n".join(describe(HEALTHY))
    assert "at most 40 tokens/s" in text and "not amx: the processor has no amx_tile" in text
    assert "no limits" in text and "Hugging Face answers" in text
    assert "no route" in "\n".join(describe(replace(HEALTHY, hub_missing="no route")))


@pytest.mark.parametrize(
    ("fact", "finding", "remedy"),
    [
        ({"kernels": None, "kernels_missing": "no module"}, "no C++ kernels (no module)", "g++"),
        (
            {"refusals": {"amx": "the system refused permission for AMX"}},
            "kernels for amx do not run: the system refused",
            "5.16",
        ),
        (
            {"refusals": {"amx": "it was not compiled (QUIRE_ISAS=all does)"}},
            "kernels for amx do not run: it was not",
            "install Quire again",
        ),
        ({"gpus": ["L4, 24 GiB"]}, "a GPU (L4, 24 GiB)", "make serve TORCH=cuda"),
        ({"gpus": ["L4"], "torch_build": "12.8"}, "a GPU", "nvidia-smi"),
        ({"others_share": 0.4}, "40% of the processor's time", "taskset"),
        ({"cpu_quota": 4.5}, "4.5 CPUs, of which 4", "whole ones"),
        ({"threads": 1}, "1 of 4 cores", "OMP_NUM_THREADS"),
        ({"variables": {"OMP_WAIT_POLICY": "ACTIVE"}}, "OMP_WAIT_POLICY is active", "unset"),
        ({"governor": "powersave"}, "powersave", "cpupower"),
        ({"numa_nodes": 2}, "2 NUMA nodes", "numactl"),
        ({"huge_pages": "never"}, "no huge pages", "echo madvise"),
        ({"free": GIB}, "only 1.0 GiB", "quire models"),
        ({"most_connections": 128}, "128 connections", "ulimit -n"),
        ({"torch_missing": "no module", "kernels": None}, "PyTorch cannot", "pip install torch"),
        ({"namesakes": ("quire-x",)}, "quire-x has a module", "uninstall quire-x quire-llm"),
    ],
)
def test_what_costs_speed_is_named_with_a_remedy(
    fact: dict[str, Any], finding: str, remedy: str
) -> None:
    (found,) = advise(replace(HEALTHY, **fact))
    assert finding in found.finding and remedy in found.remedy


def test_the_system_is_read(tmp_path: Path) -> None:
    files = {
        "kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "devices/system/node/node0/x": "",
        "devices/system/node/node1/x": "",
        "fs/cgroup/memory.max": "max\n",
        "fs/cgroup/a/memory.max": f"{4 * GIB}\n",
        "fs/cgroup/a/b/memory.max": f"{8 * GIB}\n",
        "cgroup": "0::/a/b\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert system.huge_pages(tmp_path) == "never"
    assert system.governor(tmp_path) == "powersave"
    assert system.numa_nodes(tmp_path) == 2
    assert system.memory_limit(tmp_path, tmp_path) == 4 * GIB


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert system.huge_pages(tmp_path) is system.governor(tmp_path) is None
    assert system.numa_nodes(tmp_path) == 1
    assert system.memory_limit(tmp_path, tmp_path) is None


def test_the_limit_that_governs_is_told() -> None:
    facts = replace(HEALTHY, memory_limit=4 * GIB, limited_by="memory.high of /pod")
    assert "4 GiB of memory (memory.high of /pod)" in "\n".join(describe(facts))


def test_another_distribution_with_a_module_of_our_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in (("quire-llm", "quire"), ("quire-client", "quire"), ("other", "other")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        folder.joinpath("METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        folder.joinpath("RECORD").write_text(f"{module}/__init__.py,,\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert system.namesakes() == ("quire-client",)
