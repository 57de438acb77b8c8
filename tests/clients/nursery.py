"""Servers in place of ``llama-server``, forked from a process that has imported all they need.

llama.cpp's tests start a server each, which costs more than what most of them do.

Flags are written in ours, as docs/howto/coming-from.md says, and the model is the demonstration
model. A flag that asks for a part of llama.cpp that is not here is left out, so that a test fails
of what it tests.

    python -m tests.clients.nursery SOCKET
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from quire.kernels.threads import wait_briefly
from quire.models.demo import DEMO_MODEL
from quire.tools import cli

PROGRAM = Path(__file__).with_name("as_llama_server.py")
"""What is started in place of ``llama-server``."""
_LONGEST = 2048  # tokens of the demonstration model
_MOST_BYTES = 2**16  # of flags
_NAME = re.compile(r"[\w.-]+")  # of a template that llama.cpp brings
_OURS = {
    "port": "--port",
    "host": "--host",
    "seed": "--seed",
    "threads": "--threads",
    "api_key": "--api-key",
    "parallel": "--max-num-seqs",
    "batch_size": "--max-num-batched-tokens",
    "chat_template": "--chat-template",
    "chat_template_file": "--chat-template",
    "cors_origins": "--allowed-origins",
}


def keep_nursery(path: str) -> None:
    """Fork a server for each who connects, for ever."""
    wait_briefly()  # before PyTorch is loaded
    for name in ("quire.engine.assembly", "quire.http.app", "quire.http.serving", "torch"):
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            program, _ = listening.accept()
            told, outputs, _, _ = socket.recv_fds(program, _MOST_BYTES, 2)
            if not os.fork():
                tempfile.tempdir = str(Path(path).parent)
                _serve(program, outputs, *json.loads(told))
            program.close()
            for output in outputs:
                os.close(output)


def _serve(
    program: socket.socket, outputs: Sequence[int], folder: str, words: Sequence[str]
) -> NoReturn:
    """Be the server that a program stands for; its socket stays open as long."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
    program.sendall(b"%d" % os.getpid())
    os.chdir(folder)
    try:
        status = cli.main(_command(words))
    except SystemExit as ending:
        status = ending.code
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 1)


def _command(words: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in [*_OURS, "alias", "ctx_size", "pooling", "reasoning", "temp"]:
        parser.add_argument("--" + name.replace("_", "-"))
    parser.add_argument("--kv-unified", action="store_true")
    parser.set_defaults(parallel="4", cors_origins="*")  # as there
    given, _ = parser.parse_known_args(words)
    if given.chat_template_file is not None:
        given.chat_template_file = str(Path(given.chat_template_file).resolve())
    if _NAME.fullmatch(given.chat_template or ""):
        given.chat_template = None
    # Served by a path, a model has that name, and another that a client gives is no error.
    os.chdir(tempfile.mkdtemp())
    model = Path((given.alias or "model").partition(",")[0])
    model.symlink_to(DEMO_MODEL)
    return ["serve", str(model), *(word for flag in _flags(given) for word in flag)]


def _flags(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for name, ours in _OURS.items():
        if getattr(given, name) is not None:
            yield ours, getattr(given, name)
    yield "--kv-cache-memory-bytes", "64MiB"
    yield "--shutdown-timeout", "0"
    yield "--override-generation-config.temperature", given.temp
    if given.ctx_size is not None:
        slots = 1 if given.kv_unified else int(given.parallel)
        yield "--max-model-len", str(min(int(given.ctx_size) // slots, _LONGEST))
    if given.pooling is not None:
        yield "--pooler-config.pooling_type", given.pooling.upper()
    if given.reasoning in ("on", "off"):
        thinks = "true" if given.reasoning == "on" else "false"
        yield "--default-chat-template-kwargs.enable_thinking", thinks


if __name__ == "__main__":
    keep_nursery(sys.argv[1])
