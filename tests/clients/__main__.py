"""Run clients against servers of one's own, and say which of them are content.

    python -m tests.clients [--list] [--folder build/clients] [PART...]

Installs each client into an environment of its own kind below the folder, on first use, and runs
its script there, with a home of its own, against a server on a loopback port: ``quire serve`` with
the demonstration model, or for agents a server whose model obeys them. A part of a client's name
chooses it. Ends with status 1 if one fails; those that cannot be installed here are told, and are
no failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.obeying import CONTEXT, TEMPLATE, obeying_server

from benchmarks.peers.cache import Cache, PeerError
from quire.models.demo import DEMO_MODEL
from quire_lab.bench.processes import serving

_PATIENCE = 300.0  # seconds that a client's script may take
_TOLD = 25  # lines of one that failed
_MODEL = "quire-demo"
# Of whoever runs this; and the tests' folder has packages of its own.
_NOT_THEIRS = ("ANTHROPIC_", "CLAUDE", "CODEX_", "OPENAI_", "PYTHONPATH")


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
    with ExitStack() as stack:
        kinds = sorted({client.is_agent for client in clients})
        urls = {kind: stack.enter_context(_server(obeying=kind)) for kind in kinds}
        contents = [_tell(client, cache, urls[client.is_agent]) for client in clients]
    return int(not all(contents))


@contextmanager
def _server(*, obeying: bool) -> Iterator[str]:
    """The address of a server of each kind."""
    if obeying:
        with obeying_server() as live:
            yield live.url
        return
    with serving(["--served-model-name", _MODEL, "--chat-template", str(TEMPLATE)]) as server:
        yield server.url


def _tell(client: Client, cache: Cache, url: str) -> bool:
    """Run a client and say in a line how it went; whether nothing is wrong."""
    try:
        command = client.install(cache, client.script)
    except PeerError as error:
        print(f"- {client.name}: not here: {error}", flush=True)
        return True
    began = time.perf_counter()
    failure = _run(command, {
        "QUIRE_URL": url,
        "QUIRE_MODEL": _MODEL,
        "QUIRE_TOKENIZER": str(DEMO_MODEL),
        "QUIRE_CONTEXT": str(CONTEXT),
    })  # fmt: skip
    seconds = time.perf_counter() - began
    print(f"{'✗' if failure else '✓'} {client.name} ({seconds:.1f} s)", flush=True)
    if failure:
        print(*failure.splitlines()[-_TOLD:], sep="\n    ", flush=True)
    return not failure


def _run(command: Sequence[str], given: Mapping[str, str]) -> str:
    """What a command has written, if it failed; "" if not."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_THEIRS)
    }
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run(
                command,
                cwd=home,
                env={**inherited, "HOME": home, **given},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return f"it was not done in {_PATIENCE:.0f} s"
    return (done.stdout + done.stderr or "no output") if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
