"""The ``quire`` command. Subcommands import what they need, so that ``--help`` loads no torch."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from quire.commands.flags import (
    add_engine_flags,
    add_flag,
    add_sampling_flags,
    help_of,
    options,
    sampling_options,
)
from quire.commands.parser import Parser
from quire.commands.serve import add_serve, serve
from quire.config import EngineConfig
from quire.errors import ConfigError, QuireError
from quire.protocol.sampling_params import SamplingParams
from quire.threads import wait_briefly
from quire.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        arguments = _parser().parse_args(argv)
        wait_briefly()
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except QuireError as error:
        print(f"quire: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# -- subcommands -------------------------------------------------------------------------------


def _generate(arguments: argparse.Namespace) -> int:
    from quire.llm import LLM

    prompts = arguments.prompt or [sys.stdin.read()]
    given = sampling_options(arguments)
    SamplingParams(**given)  # before a model is loaded
    llm = LLM(**options(arguments))
    params = llm.default_sampling_params(**given)
    print(llm.capacity.describe(), file=sys.stderr)
    for result in llm.generate(prompts, params, use_tqdm=sys.stderr.isatty()):
        for output in result.outputs:
            if len(prompts) * params.n > 1:
                print(f"--- prompt {int(result.request_id) + 1}, output {output.index + 1}")
            print(f"{result.prompt}{output.text}")
        metrics = result.metrics
        print(
            f"[{metrics.num_prompt_tokens} tokens in, {metrics.num_output_tokens} out, "
            f"{metrics.e2e_latency:.2f} s; at most {metrics.peak_blocks} KV blocks, "
            f"{metrics.block_seconds:.2f} block-seconds, {metrics.cached_tokens} tokens cached, "
            f"{metrics.num_preemptions} preemptions]",
            file=sys.stderr,
        )
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from quire.calibration import calibrate, describe

    path = Path(arguments.out)
    config = EngineConfig.create(options(arguments))
    calibration = calibrate(config, lambda text: print(text, file=sys.stderr))
    calibration.write(path)
    print(describe(calibration, path))
    return 0


def _chat(arguments: argparse.Namespace) -> int:
    from quire.llm import LLM

    given = sampling_options(arguments)
    SamplingParams(**given)  # before a model is loaded
    llm = LLM(**options(arguments))
    params = llm.default_sampling_params(**given)
    print(llm.capacity.describe(), file=sys.stderr)
    print("/clear forgets the conversation; Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    start = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages = list(start)
    while (text := _read_line()) is not None:
        if text.strip() == "/clear":
            messages = list(start)
        elif text.strip():
            messages.append({"role": "user", "content": text})
            try:
                messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
            except QuireError as error:  # too long, say: the conversation goes on without it
                messages.pop()
                print(f"quire: error: {error}", file=sys.stderr)
    return 0


def _answer(llm: Any, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer to the terminal; Ctrl-C ends it early."""
    prompt = llm.engine.input_processor.chat_prompt(messages)
    llm.engine.add_request("chat", prompt, params)
    answer = ""
    try:
        while llm.engine.has_work:
            for delta in llm.engine.step():
                answer += delta.text
                print(delta.text, end="", flush=True)
    except KeyboardInterrupt:
        llm.engine.abort("chat")
    print()
    return answer


def _bench_throughput(arguments: argparse.Namespace) -> int:
    from quire.bench.report import throughput
    from quire.bench.workloads import make_workload

    seed = arguments.workload_seed
    requests = make_workload(arguments.workload, arguments.num_prompts, seed)
    result = throughput(_system(arguments), requests)
    return _report(arguments, {**result, "workload": arguments.workload})


def _bench_latency(arguments: argparse.Namespace) -> int:
    from quire.bench.report import latency
    from quire.bench.workloads import one_request

    if arguments.num_iters < 1:
        raise ConfigError(f"num_iters must be at least 1, got {arguments.num_iters}")
    requests = [  # each with a prompt of its own, so that none is found in the prefix cache
        one_request(arguments.input_len, arguments.output_len, arguments.workload_seed + i)
        for i in range(arguments.num_iters)
    ]
    return _report(arguments, latency(_system(arguments), requests))


def _system(arguments: argparse.Namespace) -> Any:
    """What a benchmark measures. A flag that would do nothing is refused."""
    from quire.bench.systems import Offline, Online

    chosen = options(arguments)
    if arguments.url is None:
        for name in ("max_concurrency", "api_key"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without a url")
        return Offline(**chosen)
    for field in fields(EngineConfig):
        if field.name != "model" and chosen[field.name] != field.default:
            raise ConfigError(f"{field.name} does nothing with a url: give it to the server")
    return Online(arguments.url, arguments.model, arguments.api_key, arguments.max_concurrency)


def _report(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    from quire.bench.report import describe

    print(json.dumps(result) if arguments.json else describe(result))
    return 0


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        return ""


# -- flags -------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="quire", description="Serve large language models from paged memory.")
    parser.add_argument("--version", action="version", version=f"quire {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    add_serve(_command(commands, "serve", serve, "an OpenAI-compatible HTTP server"))

    generate = _command(commands, "generate", _generate, "complete prompts")
    generate.add_argument("prompt", nargs="*", metavar="PROMPT", help="text to complete (or stdin)")
    generate.add_argument("--model", metavar="MODEL", help=help_of("model"))
    add_sampling_flags(generate, max_tokens=128)
    add_engine_flags(generate)

    chat = _command(commands, "chat", _chat, "talk with the model in the terminal")
    chat.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    chat.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    add_sampling_flags(chat, max_tokens=None, leave_out=("n",))
    add_engine_flags(chat)

    bench = commands.add_parser("bench", help="measure how fast a model is served")
    _add_benchmarks(bench.add_subparsers(required=True, metavar="BENCHMARK"))

    # Imported with their flags: neither these rooms nor their flags load anything heavy.
    _planning_commands(commands)

    text = "measure how long steps take on this machine, for simulate and plan"
    calibrate = _command(commands, "calibrate", _calibrate, text)
    calibrate.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    calibrate.add_argument("--out", default="costs.json", metavar="FILE", help="(%(default)s)")
    add_engine_flags(calibrate)
    return parser


def _add_benchmarks(benchmarks: Any) -> None:
    throughput = _command(
        benchmarks, "throughput", _bench_throughput, "tokens per second of many requests at once"
    )
    group = throughput.add_argument_group("workload")
    group.add_argument(
        "--workload",
        default="sharegpt",
        help="sharegpt, alpaca, prefix, or a file with a JSON object "
        '{"prompt": [token ids], "max_tokens": N} a line (%(default)s)',
    )
    add_flag(group, "num_prompts", "int", 64, "requests")
    _add_benchmark_flags(throughput, group)

    latency = _command(benchmarks, "latency", _bench_latency, "one request alone")
    group = latency.add_argument_group("workload")
    add_flag(group, "input_len", "int", 128, "tokens in")
    add_flag(group, "output_len", "int", 256, "tokens out")
    add_flag(group, "num_iters", "int", 3, "times that a request is served")
    _add_benchmark_flags(latency, group)


def _add_benchmark_flags(parser: argparse.ArgumentParser, workload: Any) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    add_flag(workload, "workload_seed", "int", 7, "decides the prompts")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    group = parser.add_argument_group(
        "server", "With a URL, a running server is measured instead of an engine in this process."
    )
    add_flag(group, "url", "str", None, "of a server with OpenAI's API, such as http://host:8000")
    add_flag(group, "api_key", "str", None, "key that the server asks for")
    add_flag(group, "max_concurrency", "int", None, "most requests at once (default: no limit)")
    add_engine_flags(parser)


def _planning_commands(commands: Any) -> None:
    from quire.commands.plan import add_plan, plan
    from quire.commands.reproduce import add_reproduce, reproduce
    from quire.commands.simulate import add_simulate, simulate

    add_simulate(
        _command(commands, "simulate", simulate, "serve a workload on a virtual clock, no model")
    )
    add_plan(
        _command(commands, "plan", plan, "how many users fit, how fast, and what would change it")
    )
    text = "the PagedAttention paper's experiments, simulated, beside what was published"
    add_reproduce(_command(commands, "reproduce", reproduce, text))


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> Parser:
    command: Parser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command
