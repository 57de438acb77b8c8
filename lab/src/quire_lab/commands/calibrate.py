"""``quire calibrate``: step times, measured here, on a server, or read from a file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.models.shape import ModelShape
from quire.tools.commands.command import Command
from quire.tools.commands.flags import (
    add_engine_flags,
    add_flag,
    check_no_engine_flags,
    help_of,
    options,
)
from quire.tools.commands.parser import Parser
from quire_lab.commands.setup import named_model, rounded
from quire_lab.simulation.calibrated import Calibration

_DESCRIBING = (
    "block_size", "kv_cache_memory_bytes", "dtype", "kv_cache_dtype", "quantization",
    "max_model_len", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
"""The settings that describe an engine in another process."""

_ELSEWHERE = ("streaming sessions", "blocks outside the pool", "observing")
"""Sections of settings that change no step's time: they may be given, and help leaves them out."""

_OF_URL = ("api_key", "served_model_name")
_KEPT = ".part"  # after the name of what is written
_MOST_SECONDS = 86_400


def add_calibrate(parser: Parser) -> None:
    parser.epilog = (
        "For instance: quire calibrate --time-limit 120, then quire plan --cost-model costs.json "
        "--dataset sharegpt --ttft 1. What Ctrl-C stops is kept, and goes on from there."
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{help_of('model')}; with --url or --steps, the "
        "model's name for quire simulate (default: its name on the server)",
    )  # fmt: skip
    text = "file to write (default: %(default)s)"
    parser.add_argument("--out", default="costs.json", metavar="FILE", help=text)
    parser.add_argument(
        "--unit", choices=("wall", "cpu"), default="wall", help="time to measure: wall, elapsed; "
        "cpu, of the processor, for a machine that is shared (default: %(default)s)",
    )  # fmt: skip
    text = "longest time to measure (default: as long as four passes take; 300 with --url)"
    add_flag(parser, "time_limit", "float", None, text, value="SECONDS")
    group = parser.add_argument_group(
        "another engine", "Step times of an engine that is not in this process. Settings that "
        "describe it may be given too: " + ", ".join(_DESCRIBING),
    )  # fmt: skip
    text = "server with OpenAI's API, to be timed as a client sees it"
    add_flag(group, "url", "str", None, text, value="URL")
    add_flag(group, "api_key", "str", None, "API key of the server", value="KEY")
    text = "the model's name on the server (default: the first that it lists)"
    add_flag(group, "served_model_name", "str", None, text, value="NAME")
    text = "CSV of step times, as --record-steps writes it (docs/simulation-costs.md)"
    group.add_argument("--steps", metavar="FILE", help=text)
    text = "blocks in its KV pool (default: by kv_cache_memory_bytes, or its /metrics)"
    group.add_argument("--num-blocks", type=int, metavar="N", help=text)
    add_engine_flags(parser)
    for section in parser._action_groups:
        if section.title in _ELSEWHERE:
            for action in section._group_actions:
                action.help = argparse.SUPPRESS


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure, fit, write; the exit status."""
    from quire_lab.calibration.description import describe

    path = Path(arguments.out)
    if arguments.url is not None and arguments.steps is not None:
        raise ConfigError("url and steps contradict each other: step times come from one of them")
    if arguments.url is None:
        for name in _OF_URL:
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without a url")
    if arguments.steps is not None and arguments.time_limit is not None:
        raise ConfigError("time_limit does nothing with steps: nothing is measured")
    config = EngineConfig.create(options(arguments))
    if arguments.url is not None:
        found = _of_server(arguments, config)
    elif arguments.steps is not None:
        found = _of_steps(arguments, config)
    else:
        found = _here(arguments, config)
    found.write(path)
    print(describe(found, path))
    return 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr)


def _here(arguments: argparse.Namespace, config: EngineConfig) -> Calibration:
    from quire_lab.calibration.calibrate import calibrate as measure

    if arguments.num_blocks is not None:
        raise ConfigError(
            "num_blocks does nothing without url or steps: give kv_cache_memory_bytes"
        )
    limit, kept = arguments.time_limit, Path(f"{arguments.out}{_KEPT}")
    if limit is not None and not 1 <= limit <= _MOST_SECONDS:
        raise ConfigError(f"time_limit must be from 1 to 86,400 seconds, got {limit:g}")
    with _Bar() as bar:
        try:
            return measure(config, bar.show, arguments.unit, limit, kept)
        except KeyboardInterrupt:
            if kept.exists():
                bar.say(f"{kept} has what was measured: the same command goes on from there")
            raise


class _Bar:
    """How far measuring is: a bar on a terminal, elsewhere a line for each scenario."""

    def __init__(self) -> None:
        from tqdm import tqdm

        form = "{percentage:3.0f} %|{bar}| {elapsed}<{remaining}{desc}"
        self._bar = tqdm(total=1.0, bar_format=form, disable=not sys.stderr.isatty(), leave=False)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, text: str, share: float) -> None:
        """What is measured now, and the share of all that is done."""
        if self._bar.disable:
            self.say(text)
            return
        self._bar.set_description_str(f" {text}", refresh=False)
        self._bar.update(max(0.0, share - self._bar.n))
        self._bar.refresh()

    def say(self, text: str) -> None:
        """One line."""
        self._bar.write(text, file=sys.stderr)


def _of_steps(arguments: argparse.Namespace, config: EngineConfig) -> Calibration:
    from quire_lab.calibration.imported import import_steps

    check_no_engine_flags(arguments, _DESCRIBING, "steps")
    if config.model is None:
        raise ConfigError("steps needs the model's name for quire simulate")
    model = _shape(config, config.model)
    pool = _pool_bytes(arguments, config, model, config.block_size)
    if pool is None:
        raise ConfigError(
            "step times do not show the size of the pool: give num_blocks or kv_cache_memory_bytes"
        )
    path = Path(arguments.steps)
    return import_steps(path, model, config.block_size, pool, arguments.unit)


def _of_server(arguments: argparse.Namespace, config: EngineConfig) -> Calibration:
    from quire_lab.calibration.client.served import Target, calibrate_server, look_at

    check_no_engine_flags(arguments, _DESCRIBING)
    if arguments.unit != "wall":
        raise ConfigError("unit must be wall with a url: a client cannot measure processor time")
    target = Target(arguments.url, arguments.api_key, arguments.served_model_name)
    facts = look_at(target)
    model = _shape(config, config.model or facts.model)
    block_size = facts.block_size or config.block_size
    pool = _pool_bytes(arguments, config, model, block_size)
    if pool is None and facts.num_blocks is not None:
        pool = facts.num_blocks * block_size * model.kv_bytes_per_token
    if pool is None:
        raise ConfigError(
            f"{arguments.url} does not show the size of its KV pool (cache_config_info of "
            "/metrics): give num_blocks or kv_cache_memory_bytes"
        )
    limit = 300.0 if arguments.time_limit is None else arguments.time_limit
    return calibrate_server(target, facts, model, config, block_size, pool, limit, _progress)


def _shape(config: EngineConfig, name: str) -> ModelShape:
    model = named_model(name)
    if config.dtype != "auto":
        model = model.of_dtype(config.dtype)
    if config.quantization is not None:
        model = rounded(model, config.quantization)
    if config.kv_cache_dtype != "auto":
        model = replace(model, kv_dtype=config.kv_cache_dtype)
    return model


def _pool_bytes(
    arguments: argparse.Namespace, config: EngineConfig, model: ModelShape, block_size: int
) -> int | None:
    """The size of the pool by the flags; None: they do not give it."""
    if arguments.num_blocks is None:
        return config.kv_cache_memory_bytes
    if config.kv_cache_memory_bytes is not None:
        raise ConfigError("num_blocks and kv_cache_memory_bytes contradict each other")
    if arguments.num_blocks < 1:
        raise ConfigError(f"num_blocks must be at least 1, got {arguments.num_blocks}")
    return int(arguments.num_blocks * block_size * model.kv_bytes_per_token)


COMMAND = Command(add_calibrate, calibrate)
