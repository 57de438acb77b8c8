"""The ``quire`` command. Subcommands import what they need, so that ``--help`` loads no torch."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path

from quire.core.errors import DOCTOR, ModelNotFoundError, QuireError
from quire.core.version import __version__
from quire.engine.streams import nobody_waits
from quire.kernels.threads import wait_briefly
from quire.tools.commands.command import COMMANDS, explain, load
from quire.tools.commands.parser import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    _prepare_streams()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    except QuireError as error:  # of a file of flags, or of a command that is not installed
        return _failed(str(error))
    # A server does not wait for the reader of its output; any other command must not lose any of
    # it, for the output is its result.
    with nobody_waits() if arguments.serves else nullcontext():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        wait_briefly()
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()  # here, where a closed pipe can be handled
        return status
    except ModelNotFoundError as error:
        from quire.tools.commands.nearest import hint

        return _failed(f"{error}; {hint(error.name)}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _failed(f"PyTorch is not installed, without which no model runs; {DOCTOR}")
    except QuireError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as of ``quire simulate | head``
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_output()
        return _failed(f"{error.filename or 'the output'} cannot be written: {error.strerror}")


def _prepare_streams() -> None:
    """Open standard streams that are closed, and let none fail on a character.

    The next file or socket would get the number of a closed stream, and be written to as if it
    were the stream. A path may hold characters that a terminal cannot show.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open(mode)  # noqa: SIM115  # as long as the process lives
            setattr(sys, name, nothing)  # it gets the lowest free number, which is its own
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _failed(why: str) -> int:
    print(f"quire: error: {why}", file=sys.stderr)
    return 1


def _discard_output() -> None:
    """Python flushes once more at the end, which would fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- subcommands -------------------------------------------------------------------------------


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands, of which ``argv``'s alone is loaded."""
    parser = Parser(prog="quire", description="Serve large language models from paged memory.")
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, listed in COMMANDS.items():
        inner = commands.add_parser(name, help=listed.help, description=listed.help)
        if name == chosen:
            command = load(name)
            command.add(inner)
            inner.set_defaults(run=command.run, serves=command.serves)
    if chosen is not None and chosen not in COMMANDS:
        parser.error(explain(chosen))
    return parser
