"""The ``quire`` command. Subcommands import what they need, so that ``--help`` loads no torch."""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, QuireError
from quire.core.version import __version__
from quire.engine.streams import nobody_waits
from quire.kernels.threads import wait_briefly
from quire.tools.commands.chat import add_chat, chat
from quire.tools.commands.command import ELSEWHERE, Command, load
from quire.tools.commands.doctor import add_doctor, doctor
from quire.tools.commands.flags import (
    add_engine_flags,
    add_flag,
    check_no_engine_flags,
    help_of,
    options,
)
from quire.tools.commands.generate import add_generate, generate
from quire.tools.commands.models import add_models, models
from quire.tools.commands.parser import Parser
from quire.tools.commands.profile import profiled
from quire.tools.commands.pull import add_pull, pull
from quire.tools.commands.record import add_record, record
from quire.tools.commands.replay import add_replay, replay
from quire.tools.commands.serve import add_serve, serve
from quire.tools.commands.top import add_top, top


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
    # A server does not wait for whoever reads its output; any other command must not lose any of
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


def _bench_throughput(arguments: argparse.Namespace) -> int:
    from quire.tools.bench.report import throughput
    from quire.tools.bench.workloads import make_workload

    seed = arguments.workload_seed
    requests = make_workload(arguments.workload, arguments.num_prompts, seed)
    system = _system(arguments)
    with profiled(system.engine, arguments.profile):
        result = throughput(system, requests)
    return _report(arguments, {**result, "workload": arguments.workload})


def _bench_latency(arguments: argparse.Namespace) -> int:
    from quire.tools.bench.report import latency
    from quire.tools.bench.workloads import one_request

    if arguments.num_iters < 1:
        raise ConfigError(f"num_iters must be at least 1, got {arguments.num_iters}")
    requests = [  # each with a prompt of its own, so that none is found in the prefix cache
        one_request(arguments.input_len, arguments.output_len, arguments.workload_seed + i)
        for i in range(arguments.num_iters)
    ]
    system = _system(arguments)
    with profiled(system.engine, arguments.profile):
        result = latency(system, requests)
    return _report(arguments, result)


def _system(arguments: argparse.Namespace) -> Any:
    """The system that a benchmark measures. A flag that would do nothing is refused."""
    from quire.tools.bench.systems import Offline, Online

    chosen = options(arguments)
    if arguments.url is None:
        for name in ("max_concurrency", "api_key"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without a url")
        return Offline(**chosen)
    check_no_engine_flags(arguments)
    return Online(arguments.url, arguments.model, arguments.api_key, arguments.max_concurrency)


def _report(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    from quire.tools.bench.report import describe

    print(json.dumps(result) if arguments.json else describe(result))
    return 0


# -- flags -------------------------------------------------------------------------------------


_COMMANDS = (
    Command("serve", "an OpenAI-compatible HTTP server", add_serve, serve, serves=True),
    Command("generate", "complete prompts", add_generate, generate),
    Command("chat", "talk with a model in the terminal", add_chat, chat),
    Command("top", "memory, queues and why requests wait, on running servers, live", add_top, top),
    Command("record", "record what a running server's page shows in a file", add_record, record),
    Command("replay", "show a recording on the page, with a time slider", add_replay, replay, True),
    Command("pull", "download a model from Hugging Face", add_pull, pull),
    Command(
        "models", "downloaded models: which can be served, and for how many users",
        add_models, models,
    ),
    Command(
        "doctor", "this machine, the kernels it runs, and what would make it faster",
        add_doctor, doctor,
    ),
)  # fmt: skip


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; of other packages' commands, ``argv``'s alone is loaded."""
    parser = Parser(prog="quire", description="Serve large language models from paged memory.")
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        _add(commands, command)
    bench = commands.add_parser("bench", help="measure how fast a model is served")
    _add_benchmarks(bench.add_subparsers(required=True, metavar="BENCHMARK"))
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, elsewhere in ELSEWHERE.items():
        if name == chosen:
            _add(commands, load(name))
        else:
            commands.add_parser(name, help=elsewhere.help)
    return parser


def _add_benchmarks(benchmarks: Any) -> None:
    _add(
        benchmarks,
        Command(
            "throughput",
            "tokens per second of many requests at once",
            _add_throughput,
            _bench_throughput,
        ),
    )
    _add(
        benchmarks,
        Command("latency", "one request at a time", _add_latency, _bench_latency),
    )


def _add_throughput(throughput: Any) -> None:
    group = throughput.add_argument_group("workload")
    group.add_argument(
        "--workload",
        default="sharegpt",
        metavar="{sharegpt,alpaca,prefix,FILE}",
        help="requests to serve; of a file, each line is a JSON object "
        '{"prompt": [token ids], "max_tokens": N} (default: %(default)s)',
    )
    add_flag(group, "num_prompts", "int", 64, "number of requests")
    _add_benchmark_flags(throughput, group)


def _add_latency(latency: Any) -> None:
    group = latency.add_argument_group("workload")
    add_flag(group, "input_len", "int", 128, "length of the prompt", value="TOKENS")
    add_flag(group, "output_len", "int", 256, "length of the output", value="TOKENS")
    add_flag(group, "num_iters", "int", 3, "number of requests, one after the other")
    _add_benchmark_flags(latency, group)


def _add_benchmark_flags(parser: argparse.ArgumentParser, workload: Any) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    add_flag(workload, "workload_seed", "int", 7, "seed of the prompts")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    text = "write a trace of the steps, for Perfetto"
    add_flag(workload, "profile", "str", None, text, value="FILE")
    group = parser.add_argument_group(
        "server", "With --url, a running server is measured instead of an engine in this process."
    )
    text = "server with OpenAI's API, such as http://host:8000"
    add_flag(group, "url", "str", None, text, value="URL")
    add_flag(group, "api_key", "str", None, "API key of the server", value="KEY")
    add_flag(group, "max_concurrency", "int", None, "most requests at a time (default: no limit)")
    add_engine_flags(parser)


def _add(commands: Any, command: Command) -> Parser:
    parser: Parser = commands.add_parser(command.name, help=command.help, description=command.help)
    parser.set_defaults(run=command.run, serves=command.serves)
    command.add(parser)
    return parser
