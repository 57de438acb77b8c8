from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.kernels.threads import shares_of_cores, usable_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight CPUs, two of each core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for cpu in range(8):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    return tmp_path


def tokens_to_compute(machine: Path, group: str, **files: str) -> None:
    directory = machine / "fs/cgroup" / group
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("cpu_", "cpu.", 1)).write_text(text)


def test_two_threads_of_a_core_count_once(machine: Path) -> None:
    assert usable_cores(machine, machine) == 4


def test_affinity_limits(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5}, raising=False)
    assert usable_cores(machine, machine) == 2


@pytest.mark.parametrize(("bind", "cores"), [("close", 4), ("TRUE", 4), ("false", 1)])
def test_a_place_of_openmp_does_not(
    bind: str, cores: int, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_PROC_BIND", bind)
    assert usable_cores(machine, machine) == cores


@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [("max 100000", "max 100000", 4), ("250000 100000", "max 100000", 2),
     ("max 100000", "100000 100000", 1), ("50000 100000", "max 100000", 1)],
)  # fmt: skip
def test_the_least_quota_of_nested_cgroups_holds(
    machine: Path, inner: str, outer: str, cores: int
) -> None:
    (machine / "cgroup").write_text("0::/outer/inner\n")
    tokens_to_compute(machine, "outer", cpu_max=outer)
    tokens_to_compute(machine, "outer/inner", cpu_max=inner)
    assert usable_cores(machine, machine) == cores


def test_first_version_of_cgroups(machine: Path) -> None:
    (machine / "cgroup").write_text("5:memory:/box\n4:cpu,cpuacct:/box\n")
    tokens_to_compute(machine, "cpu/box", cpu_cfs_quota_us="300000\n", cpu_cfs_period_us="100000\n")
    tokens_to_compute(machine, "cpu", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    assert usable_cores(machine, machine) == 3


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("nodes", "count", "shares"),
    [
        (1, 2, [{0, 4, 1, 5}, {2, 6, 3, 7}]),
        (1, 3, [{0, 4}, {1, 5}, {2, 6, 3, 7}]),
        (2, 2, [{0, 4, 2, 6}, {1, 5, 3, 7}]),  # a NUMA node each
        (2, 4, [{0, 4}, {2, 6}, {1, 5}, {3, 7}]),
        (1, 5, None),
    ],
)
def test_processes_share_cores_by_their_nodes(
    machine: Path, nodes: int, count: int, shares: list[set[int]] | None
) -> None:
    for cpu in range(8):
        (machine / f"devices/system/cpu/cpu{cpu}/node{cpu % nodes}").mkdir()
    assert shares_of_cores(count, machine) == shares
