"""What delivers Quire, read by the tools that will read it: ``make test-wheel`` installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quire
from quire.tools.cli import main

ROOT = Path(quire.__file__).parents[2]
_INSTALLED = os.environ.get("QUIRE_READERS", "")

pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="no sources")


def read(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which(tool, path=os.pathsep.join((_INSTALLED, os.environ["PATH"])))
    if program is None:
        pytest.skip(f"{tool} is not here: make test-wheel")
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_image() -> None:
    found = read("hadolint", "Dockerfile")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.compose-spec", "compose.yaml"),
        ("vendor.github-workflows", ".github/workflows/test.yml"),
        ("vendor.github-workflows", ".github/workflows/wheels.yml"),
    ],
)
def test_what_has_a_schema(schema: str, file: str) -> None:
    found = read("check-jsonschema", "--builtin-schema", schema, file)
    assert found.returncode == 0, found.stdout + found.stderr


def test_kubernetes() -> None:
    found = read("kubernetes-validate", "--strict", "deploy/kubernetes/quire.yaml")
    said = found.stdout + found.stderr
    assert found.returncode == 0 and said.count("passed for resource") == 3, said


def test_manifests_of_plans(tmp_path: Path) -> None:
    read("kubernetes-validate", "--version")  # before anything is planned
    path = tmp_path / "plan.yaml"
    load = ["--input", "64", "--output", "8", "--requests", "4", "--max-model-len", "512"]
    for engine, parts in (("vllm", 2), ("sglang", 2), ("trtllm", 3), ("llamacpp", 2)):
        command = ["plan", "llama-3-8b", "--machine", "h100", "--engine", engine, *load]
        assert main([*command, "--manifest", str(path)]) == 0
        found = read("kubernetes-validate", "--strict", path)
        said = found.stdout + found.stderr
        assert found.returncode == 0 and said.count("passed for resource") == parts, said


def test_systemd(tmp_path: Path) -> None:
    text = (ROOT / "deploy/quire.service").read_text(encoding="utf-8")
    unit = tmp_path / "quire.service"
    unit.write_text(text.replace("/opt/quire/bin/quire", sys.executable), encoding="utf-8")
    found = read("systemd-analyze", "verify", unit)
    assert found.returncode == 0 and not found.stderr, found.stderr
