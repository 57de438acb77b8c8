"""``quire top``: running servers' memory and queues, in a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys

from quire.core.errors import ConfigError
from quire.tools.commands.command import Command
from quire.tools.commands.flags import add_flag

_URL = "http://127.0.0.1:8000"
_SORTS = ("line", "age", "blocks", "tokens")
_ROWS = 500  # requests of each kind that are asked for


def add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="*", default=[_URL], metavar="URL", help=f"servers (default: {_URL})"
    )
    add_flag(
        parser, "api_key", "str", None, "API key of the servers (default: the variable "
        "QUIRE_API_KEY, which other users of this machine cannot see)", value="KEY",
    )  # fmt: skip
    add_flag(parser, "api_key_file", "str", None, "file with the key", value="FILE")
    text = "time between two updates, 0.1 to 3600"
    add_flag(parser, "interval", "float", 1.0, text, value="SECONDS")
    parser.add_argument(
        "--sort",
        choices=_SORTS,
        default="line",
        help="order of requests; line: as they run and wait (default: %(default)s)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print once and end; also if this is not a terminal"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what servers answer as JSON, once"
    )


def top(arguments: argparse.Namespace) -> int:
    """Show servers until the user quits, or once; exit status 1: a server did not answer."""
    from rich.console import Console

    from quire.http.config.keys import gather_keys
    from quire.tools.terminal.top import Servers, Top
    from quire.tools.terminal.top_text import printed

    if not 0.1 <= arguments.interval <= 3600:
        raise ConfigError(f"interval must be from 0.1 to 3600 seconds, got {arguments.interval:g}")
    given = [] if arguments.api_key is None else [arguments.api_key]
    keys = gather_keys(given, arguments.api_key_file)
    servers = Servers(arguments.url, keys[0] if keys else None, _ROWS)
    console = Console(highlight=False)
    seen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if seen and not (arguments.once or arguments.json):
        Top(servers, arguments.sort, arguments.interval).run(console)
        return 0
    views = servers.look()
    if arguments.json:
        told = [{"url": v.url, "state": v.state, "problem": v.problem or None} for v in views]
        print(json.dumps(told))
    else:
        printed(views, console, arguments.sort)
    return int(any(view.state is None for view in views))


COMMAND = Command(add_top, top)
