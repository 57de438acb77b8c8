"""What installs Quire: Makefile, Dockerfile and the systemd unit agree with it and each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import quire
from quire.http.config.server import ServerConfig

ROOT = Path(quire.__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="no sources")


def found(pattern: str, file: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"))
    assert match is not None, f"{pattern} is not in {file}"
    return match[1]


def test_one_version_of_torch_is_installed() -> None:
    assert found(r"torch==([\d.]+)", "Makefile") == found(r"TORCH_VERSION=([\d.]+)", "Dockerfile")


@pytest.mark.parametrize(("lock", "extra"), [("serve.txt", None), ("dev.txt", "dev")])
def test_a_lock_holds_all_that_is_needed_with_hashes(lock: str, extra: str | None) -> None:
    text = (ROOT / "locks" / lock).read_text(encoding="utf-8")
    entries = [one.strip() for one in re.split(r"\n(?! )", text) if one.strip()]
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text, "where it comes from is for who installs it"
    locked = {entry.split("==")[0] for entry in entries}
    table = found(r"(?s)\ndependencies = \[\n(.*?)\n\]", "pyproject.toml")
    if extra is not None:
        table += found(rf"(?s)\n{extra} = \[\n(.*?)\n\]", "pyproject.toml")
    needed = {name.replace("_", "-") for name in re.findall(r'^    "([\w-]+)', table, re.MULTILINE)}
    assert needed - locked == {"torch"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("torch", "status", "said"), [("cpu", 0, "/whl/cpu"), ("cuda", 0, ""), ("gpu", 2, "TORCH must")]
)
def test_make_knows_which_builds_are_wanted(
    tmp_path: Path, torch: str, status: int, said: str
) -> None:
    venv = tmp_path / "venv"
    command = ["make", "--dry-run", f"{venv}/torch", f"VENV={venv}", f"TORCH={torch}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert ("/whl/cpu" in done.stdout) == (torch == "cpu")


def test_an_image_is_built_of_files_that_there_are() -> None:
    listed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in listed if line.startswith("!")}
    assert sent >= {
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "csrc",
        "pyproject.toml",
        "src",
        "lab/src",
        "locks",
    }
    assert all((ROOT / name).exists() for name in sent)


def test_systemd_waits_for_the_drain() -> None:
    patience = int(found(r"TimeoutStopSec=(\d+)", "deploy/quire.service"))
    assert patience > ServerConfig().shutdown_timeout
