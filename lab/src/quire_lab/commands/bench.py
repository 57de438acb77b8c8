"""``quire bench``: how fast a model is served, by an engine in this process or by a server."""

from __future__ import annotations

import argparse
import json
from typing import Any

from quire.core.errors import ConfigError
from quire.tools.commands.command import Command
from quire.tools.commands.flags import (
    add_engine_flags,
    add_flag,
    check_no_engine_flags,
    help_of,
    options,
)
from quire.tools.commands.parser import Parser
from quire_lab.commands.profile import profiled


def add_bench(parser: Parser) -> None:
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    text = "tokens per second of many requests at once"
    throughput = benchmarks.add_parser("throughput", help=text, description=text)
    _add_throughput(throughput)
    throughput.set_defaults(run=_bench_throughput)
    text = "seconds of requests that are sent one at a time"
    latency = benchmarks.add_parser("latency", help=text, description=text)
    _add_latency(latency)
    latency.set_defaults(run=_bench_latency)


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


def _add_benchmark_flags(parser: Parser, workload: Any) -> None:
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


def _bench_throughput(arguments: argparse.Namespace) -> int:
    from quire_lab.bench.report import throughput
    from quire_lab.bench.workloads import make_workload

    seed = arguments.workload_seed
    requests = make_workload(arguments.workload, arguments.num_prompts, seed)
    system = _system(arguments)
    with profiled(system.engine, arguments.profile):
        result = throughput(system, requests)
    return _report(arguments, {**result, "workload": arguments.workload})


def _bench_latency(arguments: argparse.Namespace) -> int:
    from quire_lab.bench.report import latency
    from quire_lab.bench.workloads import one_request

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
    from quire_lab.bench.systems import Offline, Online

    chosen = options(arguments)
    if arguments.url is None:
        for name in ("max_concurrency", "api_key"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without a url")
        return Offline(**chosen)
    check_no_engine_flags(arguments)
    return Online(arguments.url, arguments.model, arguments.api_key, arguments.max_concurrency)


def _report(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    from quire_lab.bench.report import describe

    print(json.dumps(result) if arguments.json else describe(result))
    return 0


COMMAND = Command(add_bench, None)
