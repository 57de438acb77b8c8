"""Run clients against a server of one's own, and say which of them are content.

    python -m tests.clients [--list] [--folder build/clients] [PART...]

Starts ``quire serve`` with the demonstration model on a loopback port, installs each client into
an environment of its own kind below the folder, on first use, and runs its script there. A part of
a client's name chooses it. Ends with status 1 if one fails; those that cannot be installed here are
told, and are no failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client

from benchmarks.peers.cache import Cache, PeerError
from quire.models.demo import DEMO_MODEL
from quire.tools.bench.processes import serving

_HERE = Path(__file__).parent
_PATIENCE = 300.0  # seconds that a client's script may take
_TOLD = 25  # lines of one that failed
_MODEL = "quire-demo"


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m tests.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="clients with this in the name")
    parser.add_argument("--list", action="store_true", help="name the clients, and do nothing")
    parser.add_argument("--folder", type=Path, default=Path("build/clients"))
    arguments = parser.parse_args()
    parts = arguments.parts or [""]
    clients = [client for client in CLIENTS if any(part in client.name for part in parts)]
    if arguments.list or not clients:
        print(*(client.name for client in clients or CLIENTS), sep="\n")
        return 0 if clients else 2
    cache = Cache(arguments.folder)
    flags = ["--served-model-name", _MODEL, "--chat-template", str(_HERE / "template.jinja")]
    with serving(flags) as server:
        environment = {
            **os.environ,
            "QUIRE_URL": server.url,
            "QUIRE_MODEL": _MODEL,
            "QUIRE_TOKENIZER": str(DEMO_MODEL),
        }
        contents = [_tell(client, cache, environment) for client in clients]
    return int(not all(contents))


def _tell(client: Client, cache: Cache, environment: Mapping[str, str]) -> bool:
    """Run a client and say in a line how it went; whether nothing is wrong."""
    try:
        interpreter = client.install(cache)
    except PeerError as error:
        print(f"- {client.name}: not here: {error}", flush=True)
        return True
    began = time.perf_counter()
    failure = _run(_command(client, cache, interpreter), environment)
    seconds = time.perf_counter() - began
    print(f"{'✗' if failure else '✓'} {client.name} ({seconds:.1f} s)", flush=True)
    if failure:
        print(*failure.splitlines()[-_TOLD:], sep="\n    ", flush=True)
    return not failure


def _command(client: Client, cache: Cache, interpreter: Path) -> list[str]:
    folder = _HERE / "scripts"
    if client.script.endswith(".mjs"):  # modules are looked for beside the path as it is given
        return [str(interpreter), "--preserve-symlinks", "--preserve-symlinks-main",
                str(cache.folder / "node/scripts" / client.script)]  # fmt: skip
    return [str(interpreter), str(folder / client.script)]


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    """What a command has written, if it failed; "" if not."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"it was not done in {_PATIENCE:.0f} s"
    return (done.stdout + done.stderr or "no output") if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
