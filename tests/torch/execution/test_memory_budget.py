from __future__ import annotations

from pathlib import Path

from quire.execution.free_memory import free_memory


def test_some_memory_is_free() -> None:
    assert 0 < free_memory() < 2**50


def limit(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / f"memory.{name}").write_text(f"{content}\n")


def test_the_least_of_nested_cgroups_is_what_is_free(tmp_path: Path) -> None:
    """This process's own group sets no limit, the one above it does, the one above that another."""
    root = tmp_path / "fs/cgroup"
    (tmp_path / "cgroup").write_text("0::/pod/box/process\n")
    limit(root / "pod/box/process", max="max", current=1000)
    limit(root / "pod/box", max=900_000, current=400_000)
    limit(root / "pod", max=10**6, current=10**6 - 450_000)
    assert free_memory(tmp_path, tmp_path) == 450_000
    limit(root / "pod/box/process", max=100_000, current=99_000)
    assert free_memory(tmp_path, tmp_path) == 1000


def test_pages_of_files_are_free_memory(tmp_path: Path) -> None:
    """A model that has just been downloaded fills them."""
    root = tmp_path / "fs/cgroup"
    (tmp_path / "cgroup").write_text("0::/box\n")
    stat = "anon 5\nactive_file 200\ninactive_file 300\nworkingset_refault_file 10000"
    limit(root / "box", max=1000, current=900, stat=stat)
    assert free_memory(tmp_path, tmp_path) == 600


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("5:cpu,cpuacct:/box\n4:memory:/outer/box\n0::/\n")
    root = tmp_path / "fs/cgroup/memory"
    limit(root / "outer/box", limit_in_bytes=2**63 - 4096, usage_in_bytes=5000)
    stat = "active_file 9\ntotal_active_file 1000\ntotal_inactive_file 500"
    limit(root / "outer", limit_in_bytes=8000, usage_in_bytes=7000, stat=stat)
    assert free_memory(tmp_path, tmp_path) == 2500


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    limit(tmp_path / "fs/cgroup", max=1000, current=1500)
    assert free_memory(tmp_path, tmp_path) == 0
