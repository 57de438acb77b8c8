"""Run the tests of llama.cpp's server, as they come, against ours.

    python -m tests.clients.llama_cpp [--sources FOLDER] [PYTEST...]

FOLDER is a checkout of llama.cpp; left out, its sources are fetched into build/references. The
tests start a server for each of them with the flags of ``llama-server``, so they are given a
program that has ``quire serve`` started in its place (``nursery``). Of what fails the reasons are
known (``llama_cpp_reasons``). Ends with status 1 if anything else fails.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from references.packages import Unreachable, environment, llama_cpp
from tests.clients.llama_cpp_reasons import NOT_RUN, reason_of
from tests.clients.nursery import PROGRAM

_NEEDED = (
    "pytest", "requests", "openai", "aiohttp", "filelock", "numpy", "prometheus-client", "wget",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m tests.clients.llama_cpp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="of llama.cpp")
    arguments, flags = parser.parse_known_args()
    try:
        sources = arguments.sources or llama_cpp()
        python = environment(*_NEEDED)
    except Unreachable as error:
        print(f"- llama.cpp's tests: not here: {error}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        outcomes = _run(python, sources / "tools/server/tests", Path(folder), flags)
    return _tell(outcomes)


def _run(
    python: Path, tests: Path, folder: Path, flags: Sequence[str]
) -> Mapping[str, tuple[str, str]]:
    """What became of each test: passed, failed or skipped, and a word about it."""
    program, report, path = (folder / name for name in ("llama-server", "report.xml", "socket"))
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {PROGRAM} {path} "$@"\n')
    program.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {
        "LLAMA_SERVER_BIN_PATH": str(program),
        "PORT": str(port),
        "PYTHONDONTWRITEBYTECODE": "1",  # the sources stay as they are
    }
    command = [python, "-m", "pytest", "unit", "-m", "not slow", "-p", "no:cacheprovider"]
    words = [*command, "--quiet", "--no-header", "--tb=short", f"--junitxml={report}", *flags]
    words += [f"--ignore=unit/{name}.py" for name in NOT_RUN]
    nursery = subprocess.Popen([sys.executable, "-m", "tests.clients.nursery", str(path)])
    try:
        while not path.exists() and nursery.poll() is None:
            time.sleep(0.1)
        subprocess.run([str(word) for word in words], cwd=tests, env={**os.environ, **given})
    finally:
        nursery.kill()
        nursery.wait()
    return dict(map(_outcome, ElementTree.parse(report).getroot().iter("testcase")))


def _outcome(case: ElementTree.Element) -> tuple[str, tuple[str, str]]:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return name, ("skipped" if kind == "skipped" else "failed", found.get("message") or "")
    return name, ("passed", "")


def _tell(outcomes: Mapping[str, tuple[str, str]]) -> int:
    """Say how many passed, and why others did not; 1 if that is not known of one."""
    for name, reason in NOT_RUN.items():
        print(f"   - {name}: {reason}")
    by_reason = defaultdict[str, list[str]](list)
    for name, (kind, _) in outcomes.items():
        if kind == "failed":
            by_reason[reason_of(name) or ""].append(name)
    unknown = by_reason.pop("", [])
    for reason, names in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(names):4} {reason}")
    for name in unknown:
        print(f"✗ {name}: {outcomes[name][1].splitlines()[:1]}")
    kinds = [kind for kind, _ in outcomes.values()]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped")))
    return int(bool(unknown) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
