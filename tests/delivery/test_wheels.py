"""Wheels as users get them: in an environment of their own, where there is no compiler.

``make test-wheel`` builds them and says where they are. QUIRE_PYTHONS names the Pythons to try, and
QUIRE_WITH versions of packages to try with, such as the lowest that are allowed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from support.furnished import furnish, instead
from support.reading import Reader

_FOLDER = os.environ.get("QUIRE_WHEELS", "")
_PYTHONS = os.environ.get("QUIRE_PYTHONS", sys.executable).split()
_WITH = os.environ.get("QUIRE_WITH", "torch==2.13.0").split()
_ANSWER = " a tuple of fields"  # after "A list is", in float32 on all processors
_LIMIT = 1500.0  # seconds, of a machine that is busy

pytestmark = [
    pytest.mark.skipif(not _FOLDER, reason="QUIRE_WHEELS is not set: make test-wheel"),
    pytest.mark.timeout(1800),
]


def the(pattern: str) -> Path:
    (found,) = Path(_FOLDER).glob(pattern)
    return found


def test_an_sdist_holds_what_is_built_from_and_no_more() -> None:
    with tarfile.open(the("quire_llm-*.tar.gz")) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    assert {name.split("/")[0] for name in names} == {
        "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "csrc", "pyproject.toml", "src",
    }  # fmt: skip
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_a_wheel_holds_the_package_and_the_kernels() -> None:
    wheel = the("quire_llm-*.whl")
    python, abi = re.findall(r"-(cp\d+)-(\w+)-", wheel.name)[0]
    stable = int(python[3:]) >= 12
    assert (python, abi) == ("cp312", "abi3") if stable else abi == python
    if sys.platform == "linux":
        assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA")))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"quire"}
    for room in ("kernels", "capabilities/speculation"):
        modules = [name for name in names if name.startswith(f"quire/{room}/_native.")]
        (module,) = [name for name in modules if name.endswith(".so")]
        assert (".abi3." in module) == stable
    fields = message_from_string(metadata.decode())
    assert fields["Name"] == "quire-llm" and "# Quire" in str(fields.get_payload())


def test_the_stable_abi_is_kept_to() -> None:
    wheel = the("quire_llm-*.whl")
    if "-abi3-" not in wheel.name:
        pytest.skip("the Python that built it is older than 3.12")
    audit = Path(os.environ["QUIRE_READERS"], "abi3audit")
    done = subprocess.run([audit, "--strict", wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Installation:
    """An environment with Quire in it, and nothing else in PATH than what a shell needs."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        self._bin = folder / "venv/bin"
        for tool in ("sh", "env", "uname", "ldconfig"):
            if (found := shutil.which(tool)) is not None:
                (self._bin / tool).symlink_to(found)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment = {**kept, "PATH": str(self._bin), "HOME": str(folder / "home")}
        packages = [*_WITH, *map(str, Path(_FOLDER).glob("*.whl"))]
        self.run("pip", "install", "--quiet", "--no-input", "--only-binary", ":all:", *packages)

    def run(self, command: str, *arguments: str) -> str:
        """What it prints. AssertionError: it failed."""
        done = subprocess.run(
            [self._bin / command, *arguments],
            env=self.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def serve(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [self._bin / "quire", "serve", *arguments]
        return subprocess.Popen(command, env=self.environment, cwd="/")


@pytest.fixture(scope="module", params=_PYTHONS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    yield Installation(folder, request.param)
    shutil.rmtree(folder)


def test_all_that_it_needs_is_there(installed: Installation) -> None:
    installed.run("pip", "check")
    facts = json.loads(installed.run("quire", "doctor", "--json"))
    assert facts["kernels"] and not facts["kernels_missing"] and not facts["namesakes"]
    for command in ("plan", "deploy"):  # each from a wheel of its own
        assert "usage" in installed.run("quire", command, "--help")


def test_every_build_of_the_kernels_that_runs_here_answers(installed: Installation) -> None:
    facts = json.loads(installed.run("quire", "doctor", "--json"))
    better = [] if facts["kernels"] == "portable" else ["avx2"]
    for build in dict.fromkeys(("portable", *better, facts["kernels"])):
        flags = f"--cpu-isa {build} --dtype float32 --max-tokens 4 --temperature 0".split()
        assert _ANSWER in installed.run("quire", "generate", *flags, "A list is"), build


def test_a_server_serves_the_page_and_a_chat(installed: Installation) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://localhost:{port}"
    server = installed.serve("--port", str(port))
    try:
        _wait_for(f"{address}/health", server)
        with urlopen(Request(address, headers={"accept": "text/html"})) as page:
            assert b"<title>" in page.read()
        body = {"model": "quire-demo", "messages": [{"role": "user", "content": "What is a list?"}]}
        question = Request(
            f"{address}/v1/chat/completions",
            json.dumps({**body, "max_tokens": 16}).encode(),
            {"content-type": "application/json"},
        )
        with urlopen(question) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(_LIMIT) == 0
    finally:
        server.kill()
        server.wait()


def test_what_its_own_readme_says(installed: Installation, tmp_path: Path) -> None:
    """Where nothing else is than the wheels, and the client of others' that it names."""
    installed.run("pip", "install", "--quiet", "--no-input", "openai")
    with zipfile.ZipFile(the("quire_llm-*.whl")) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = message_from_string(archive.read(name).decode())
    page = tmp_path / "README.md"
    page.write_text(str(fields.get_payload()), encoding="utf-8")
    furnish(tmp_path, str(fields.get_payload()))
    Reader(tmp_path, instead(tmp_path), str(installed.folder / "venv/bin/python")).follow(page)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _LIMIT
    while server.poll() is None and time.monotonic() < end:
        try:
            urlopen(url).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nothing answers at {url}: {server.poll()}")
