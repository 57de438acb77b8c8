"""``quire generate``: prompts in, their continuations out."""

from __future__ import annotations

import argparse
import sys

from quire.core.errors import ConfigError
from quire.text.params.sampling_params import SamplingParams
from quire.tools.commands.command import Command
from quire.tools.commands.flags import (
    add_engine_flags,
    add_sampling_flags,
    help_of,
    options,
    sampling_options,
)
from quire.tools.commands.parser import Parser
from quire.tools.terminal.screen import harmless

_STDIN = "-"


def add_generate(parser: Parser) -> None:
    parser.add_argument(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="text to complete (default, and -: standard input)",
    )
    parser.add_argument("--model", metavar="MODEL", help=help_of("model"))
    parser.add_argument(
        "--adapter",
        metavar="NAME",
        help="adapter (of --lora-modules) that completes the prompts",
    )
    add_sampling_flags(parser, max_tokens=128)
    add_engine_flags(parser)


def generate(arguments: argparse.Namespace) -> int:
    """Complete the prompts; the exit status."""
    given = sampling_options(arguments)
    SamplingParams(**given)  # before a model is loaded
    given_prompts = _prompts(arguments.prompt)

    from quire.engine.input_processor import Prompt
    from quire.engine.llm import LLM

    llm = LLM(**options(arguments))
    params = llm.default_sampling_params(**given)
    print(llm.capacity.describe(), file=sys.stderr)
    prompts: list[Prompt] = [*given_prompts]
    if arguments.adapter is not None:
        prompts = [{"prompt": one, "adapter": arguments.adapter} for one in given_prompts]
    for result in llm.generate(prompts, params, use_tqdm=sys.stderr.isatty()):
        for output in result.outputs:
            if len(prompts) * params.n > 1:
                print(f"--- prompt {int(result.request_id) + 1}, output {output.index + 1}")
            text = f"{result.prompt}{output.text}"
            print(harmless(text) if sys.stdout.isatty() else text)
        metrics = result.metrics
        print(
            f"[{metrics.num_prompt_tokens} tokens in, {metrics.num_output_tokens} out, "
            f"{metrics.e2e_latency:.2f} s; {metrics.peak_blocks} KV blocks at most, "
            f"{metrics.block_seconds:.2f} block-seconds, {metrics.cached_tokens} cached tokens, "
            f"{metrics.num_preemptions} preemptions]",
            file=sys.stderr,
        )
    return 0


def _prompts(given: list[str]) -> list[str]:
    """The prompts; ``-`` is standard input, without the newline that shells add at its end."""
    if given.count(_STDIN) > 1:
        raise ConfigError("prompt: standard input (-) can be read once only")
    return [_read_stdin() if one == _STDIN else one for one in given or [_STDIN]]


def _read_stdin() -> str:
    try:
        text = sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt: standard input is not text: {error.reason}") from error
    if not text:
        raise ConfigError("prompt: standard input is empty")
    return text


COMMAND = Command(add_generate, generate)
