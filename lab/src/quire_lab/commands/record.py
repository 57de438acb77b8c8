"""``quire record``: records what a running server's page shows."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from quire.core.errors import ConfigError
from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_flag
from quire.tools.commands.text import size
from quire_lab.commands.text import seconds
from quire_lab.recording.form import MOST_SECONDS

_URL = "http://127.0.0.1:8000"


def add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", default=_URL, metavar="URL", help=f"server (default: {_URL})"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    text = "length of the recording, 1 to 3600; Ctrl-C ends it earlier"
    add_flag(parser, "seconds", "float", MOST_SECONDS, text, value="SECONDS")
    add_flag(
        parser, "api_key", "str", None, "API key of the server (default: the variable "
        "QUIRE_API_KEY, which other users of this machine cannot see)", value="KEY",
    )  # fmt: skip
    add_flag(parser, "api_key_file", "str", None, "file with the key", value="FILE")
    parser.add_argument(
        "--text", action="store_true", help="record prompts and outputs too; the server must "
        "show them (--dashboard-show-text)",
    )  # fmt: skip


def record(arguments: argparse.Namespace) -> int:
    """Record until the file is full or a signal ends it; either way the file is complete."""
    from quire.http.config.keys import gather_keys
    from quire_lab.recording.served import ServerRecording

    if not 1 <= arguments.seconds <= MOST_SECONDS:
        raise ConfigError(f"seconds must be from 1 to 3600, got {arguments.seconds:g}")
    keys = gather_keys([arguments.api_key] if arguments.api_key else [], arguments.api_key_file)
    recording = ServerRecording(arguments.url, keys[0] if keys else None, text=arguments.text)
    path = Path(arguments.out)
    with stopped_by_signals() as stop:
        told = recording.run(path, arguments.seconds, stop, Once())
    limit = " (the most that a recording may hold)" if told.full == "bytes" else ""
    print(f"{path}: {seconds(told.seconds)}, {size(path.stat().st_size)}{limit}")
    return 0


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; a second signal ends the process."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Once:
    """Prints a problem once, however often it comes."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, text: str) -> None:
        if text != self._said:
            print(text, file=sys.stderr)
            self._said = text


COMMAND = Command(add_record, record)
