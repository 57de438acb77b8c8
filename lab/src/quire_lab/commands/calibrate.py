"""``quire calibrate``: what steps cost, on this machine, at a URL, or as others have timed them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.models.shape import ModelShape
from quire.tools.commands.command import ELSEWHERE, Command
from quire.tools.commands.flags import (
    add_engine_flags,
    add_flag,
    check_no_engine_flags,
    help_of,
    options,
)
from quire_lab.commands.setup import named_model, rounded
from quire_lab.simulation.calibrated import Calibration

_TOLD = (
    "block_size", "kv_cache_memory_bytes", "dtype", "kv_cache_dtype", "quantization",
    "max_model_len", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
"""Of the engine's flags, those that say what an engine elsewhere is like."""

_OF_URL = ("api_key", "served_model_name", "time_limit")


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{help_of('model')}; with --url or --steps, the "
        "model that is meant, as quire simulate names it (default: what the server calls it)",
    )  # fmt: skip
    parser.add_argument("--out", default="costs.json", metavar="FILE", help="(%(default)s)")
    parser.add_argument(
        "--unit", choices=("wall", "cpu"), default="wall", help="wall: seconds of the clock; cpu: "
        "of the processor, for a machine that others use as well (%(default)s)",
    )  # fmt: skip
    group = parser.add_argument_group(
        "elsewhere", "Costs of an engine that is not in this process. Flags of the engine that say "
        "what it is like count as well: " + ", ".join(_TOLD),
    )  # fmt: skip
    text = "of a server with OpenAI's API, which is timed as a client sees it"
    add_flag(group, "url", "str", None, text)
    add_flag(group, "api_key", "str", None, "key that the server asks for")
    text = "the model's name on the server (default: the first that it lists)"
    add_flag(group, "served_model_name", "str", None, text)
    text = "seconds that measuring a server may take (default: 300)"
    add_flag(group, "time_limit", "float", None, text)
    text = "CSV of step times, as --record-steps writes it and docs/simulation.md tells"
    group.add_argument("--steps", metavar="FILE", help=text)
    text = "blocks of its KV pool (default: of kv_cache_memory_bytes, or as its /metrics tells)"
    group.add_argument("--num-blocks", type=int, metavar="N", help=text)
    add_engine_flags(parser)


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure, fit, write; the exit status."""
    from quire_lab.calibration.description import describe

    path = Path(arguments.out)
    if arguments.url is not None and arguments.steps is not None:
        raise ConfigError("url and steps contradict each other: one of them tells what steps take")
    if arguments.url is None:
        for name in _OF_URL:
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without a url")
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
        raise ConfigError("num_blocks does nothing here: give kv_cache_memory_bytes")
    return measure(config, _progress, arguments.unit)


def _of_steps(arguments: argparse.Namespace, config: EngineConfig) -> Calibration:
    from quire_lab.calibration.imported import import_steps

    check_no_engine_flags(arguments, _TOLD, "steps")
    if config.model is None:
        raise ConfigError("steps: name the model whose they are, as quire simulate names it")
    model = _shape(config, config.model)
    pool = _pool_bytes(arguments, config, model, config.block_size)
    if pool is None:
        raise ConfigError(
            "step times do not tell how large the pool is: give num_blocks or kv_cache_memory_bytes"
        )
    path = Path(arguments.steps)
    return import_steps(path, model, config.block_size, pool, arguments.unit)


def _of_server(arguments: argparse.Namespace, config: EngineConfig) -> Calibration:
    from quire_lab.calibration.client.served import Target, calibrate_server, look_at

    check_no_engine_flags(arguments, _TOLD)
    if arguments.unit != "wall":
        raise ConfigError("unit: a client of a server sees the clock alone, got cpu")
    target = Target(arguments.url, arguments.api_key, arguments.served_model_name)
    facts = look_at(target)
    model = _shape(config, config.model or facts.model)
    block_size = facts.block_size or config.block_size
    pool = _pool_bytes(arguments, config, model, block_size)
    if pool is None and facts.num_blocks is not None:
        pool = facts.num_blocks * block_size * model.kv_bytes_per_token
    if pool is None:
        raise ConfigError(
            f"{arguments.url} does not tell how large its KV pool is (cache_config_info of "
            "/metrics): give num_blocks or kv_cache_memory_bytes"
        )
    limit = 300.0 if arguments.time_limit is None else arguments.time_limit
    return calibrate_server(target, facts, model, config, block_size, pool, limit, _progress)


def _shape(config: EngineConfig, name: str) -> ModelShape:
    model = named_model(name)
    if config.dtype != "auto":
        model = replace(model, dtype=config.dtype)
    if config.quantization is not None:
        model = rounded(model, config.quantization)
    if config.kv_cache_dtype != "auto":
        model = replace(model, kv_dtype=config.kv_cache_dtype)
    return model


def _pool_bytes(
    arguments: argparse.Namespace, config: EngineConfig, model: ModelShape, block_size: int
) -> int | None:
    """As the flags say; None: they do not."""
    if arguments.num_blocks is None:
        return config.kv_cache_memory_bytes
    if config.kv_cache_memory_bytes is not None:
        raise ConfigError("num_blocks and kv_cache_memory_bytes contradict each other")
    if arguments.num_blocks < 1:
        raise ConfigError(f"num_blocks must be at least 1, got {arguments.num_blocks}")
    return int(arguments.num_blocks * block_size * model.kv_bytes_per_token)


COMMAND = Command("calibrate", ELSEWHERE["calibrate"].help, add_calibrate, calibrate)
