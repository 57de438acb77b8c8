"""Every limit of the system: the one that leaves least governs."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.execution.free_memory import free_memory
from quire.execution.memory_limits import tightest

MIB = 2**20


def write(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def group(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").write_text("0::/pod/box\n")
    return tmp_path / "fs/cgroup/pod/box"


def test_a_group_that_is_slowed_down_leaves_no_more(tmp_path: Path, group: Path) -> None:
    """Beyond memory.high the system takes back as fast as a process takes."""
    write(group, memory__max=1000 * MIB, memory__high=600 * MIB, memory__current=200 * MIB)
    assert free_memory(tmp_path, tmp_path) == 400 * MIB
    write(group.parent, memory__max="max", memory__high=500 * MIB, memory__current=250 * MIB)
    assert free_memory(tmp_path, tmp_path) == 250 * MIB
    governing = tightest(tmp_path, tmp_path)
    assert governing is not None and "memory.high" in governing.name


def test_a_limit_of_memory_and_swap_together(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/box\n")
    group = tmp_path / "fs/cgroup/memory/box"
    write(group, memory__limit_in_bytes=800 * MIB, memory__usage_in_bytes=200 * MIB)
    name = "memory.memsw"
    (group / f"{name}.limit_in_bytes").write_text(str(900 * MIB))
    (group / f"{name}.usage_in_bytes").write_text(str(750 * MIB))
    assert free_memory(tmp_path, tmp_path) == 150 * MIB


def nodes(system: Path, *free: int) -> None:
    for number, num_bytes in enumerate(free):
        words = {"MemTotal": 1000 * MIB, "MemFree": num_bytes, "Inactive(file)": 10 * MIB}
        told = [f"Node {number} {name}:  {size // 1024} kB" for name, size in words.items()]
        write(system / f"devices/system/node/node{number}", meminfo="\n".join(told))


@pytest.mark.parametrize(
    ("allowed", "policy", "left"),
    [
        ("0-1", "default", None),  # all
        ("1", "default", 310),  # cpuset.mems, of either version
        ("0-1", "bind:1", 310),  # numactl --membind
        ("0-2", "bind=static:0-1", 420),
        ("0-1", "interleave:1", None),  # these take from others what is not there
        ("0-1", "prefer:1", None),
    ],
)
def test_nodes_that_memory_may_come_from(
    tmp_path: Path, allowed: str, policy: str, left: int | None
) -> None:
    nodes(tmp_path, 100 * MIB, 300 * MIB, *([50 * MIB] if "2" in allowed else []))
    write(tmp_path, status=f"VmSize: 5 kB\nMems_allowed_list:\t{allowed}")
    write(tmp_path, numa_maps=f"5600f4e1d000 {policy} file=/usr/bin/python3 mapped=2 N0=2")
    governing = tightest(tmp_path, tmp_path)
    if left is None:
        assert governing is None
    else:
        nobody = tmp_path / "promises"
        assert free_memory(tmp_path, tmp_path, nobody) == left * MIB
        assert governing is not None and "--membind" in governing.name


@pytest.mark.parametrize(
    ("limit", "field", "told"),
    [("Max address space", "VmSize", "ulimit -v"), ("Max data size", "VmData", "ulimit -d")],
)
def test_limits_of_the_process(tmp_path: Path, limit: str, field: str, told: str) -> None:
    rows = [
        "Limit                     Soft Limit           Hard Limit           Units     ",
        f"{limit:25} {500 * MIB:<20} unlimited            bytes     ",
        "Max stack size            8388608              unlimited            bytes     ",
    ]
    write(tmp_path, limits="\n".join(rows), status=f"{field}:\t {200 * 1024} kB")
    assert free_memory(tmp_path, tmp_path) == 300 * MIB
    governing = tightest(tmp_path, tmp_path)
    assert governing is not None and governing.name == told
    write(tmp_path, limits=rows[1].replace(str(500 * MIB), "unlimited"))
    assert tightest(tmp_path, tmp_path) is None
