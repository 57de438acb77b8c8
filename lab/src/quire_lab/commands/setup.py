"""The flags that ``simulate`` and ``plan`` share: model, machine, workload, settings, goals."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.config import EngineConfig
from quire.models.hub import config_file
from quire.models.shape import ROUNDINGS, ModelShape, read_shape
from quire.tools.commands.flags import add_setting
from quire_lab.commands.drafting import acceptance_of, add_acceptance, drafting_of
from quire_lab.contiguous import KV_ALLOCATORS, PAGED, limits_under
from quire_lab.simulation import Deployment, Machine, find_machine, find_model
from quire_lab.simulation.calibrated import Calibration, read_calibration
from quire_lab.simulation.catalogue.engines import ENGINES, Division, ServingEngine
from quire_lab.simulation.catalogue.models import find_known, hub_name
from quire_lab.simulation.latencies import Goals
from quire_lab.workload import FORMATS, PRESETS, UNITS, Lengths, Synthetic, Trace, TraceFacts

_MOST_USERS = 2**24
_SETTINGS = (
    "dtype", "max_model_len", "block_size", "kv_cache_memory_bytes", "gpu_memory_utilization",
    "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching",
    "preemption_mode", "swap_space", "speculative_config",
    "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "enforce_eager",
)  # fmt: skip
"""The engine's settings that a simulation depends on."""

_OF_ENGINE = ("block_size", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")
"""Those whose defaults are the engine's."""

SYNTHETIC_REQUESTS = 1000


def add_flags(parser: argparse.ArgumentParser, defaults: EngineConfig) -> None:
    """``defaults``: of the settings."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="name in the catalogue or on Hugging Face (of which only config.json is downloaded), "
        "a GGUF file, or a config.json or its directory (default: the calibrated model)",
    )  # fmt: skip
    _add_machine(parser.add_argument_group("machine"))
    _add_workload(parser.add_argument_group("workload"))
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--engine", choices=list(ENGINES), help="the engine that will serve: its forms of weights "
        "and cache, its memory, its defaults; Quire's scheduler (default: as Quire on CPUs, and as "
        "others on GPUs)",
    )  # fmt: skip
    engine.add_argument(
        "--quantization", choices=ROUNDINGS, help="round weights: int8, int4, w8a8 or w4a8, as "
        "quire serve does; or fp8 or nvfp4, which engines on GPUs keep and Quire does not "
        "(default: as the checkpoint stores them)",
    )  # fmt: skip
    for declared in fields(EngineConfig):
        if declared.name in _SETTINGS:
            add_setting(engine, declared, getattr(defaults, declared.name))
    parser.set_defaults(settings=defaults, **dict.fromkeys(_OF_ENGINE))
    engine.add_argument(
        "--kv-allocator", choices=KV_ALLOCATORS, default=PAGED, help="how KV memory is allocated: "
        "paged; or max, pow2, oracle, the contiguous baselines of the PagedAttention paper "
        "(default: %(default)s)",
    )  # fmt: skip
    add_acceptance(parser.add_argument_group("speculation"))
    group = parser.add_argument_group("goals", "for 90 % of the requests")
    text = "time to the first token"
    group.add_argument("--ttft", type=float, metavar="SECONDS", help=text)
    text = "time per token after the first"
    group.add_argument("--tpot", type=float, metavar="SECONDS", help=text)


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--machine", default="a100-80", metavar="NAME", help="name in the catalogue, or a JSON "
        "file as described in docs/simulation-costs.md (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N", help="machines among which the "
        "model is divided (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--pipeline-parallel-size", type=int, default=1, metavar="N", help="machines that have "
        "layers of their own, one after another, with --engine llamacpp (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--data-parallel-size", type=int, default=1, metavar="N", help="groups into which "
        "--tensor-parallel-size is divided, each of which attends for requests of its own while "
        "all share the experts (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--enable-expert-parallel", action="store_true", help="whole experts on each machine, not "
        "a part of each",
    )  # fmt: skip
    group.add_argument(
        "--cost-model", metavar="FILE", help="step times that quire calibrate measured (default: "
        "from the machine's figures)",
    )  # fmt: skip


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", metavar="FILE", help="take requests from a trace")
    group.add_argument(
        "--trace-format", choices=list(FORMATS), help="format of the trace (default: as the file's "
        "beginning shows)",
    )  # fmt: skip
    group.add_argument(
        "--time-unit", choices=list(UNITS), help="unit of the times in a JSONL trace (default: as "
        "its rows show; an error if they do not)",
    )  # fmt: skip
    group.add_argument(
        "--columns", metavar="COLUMNS", help="columns of a CSV in no known format: "
        "prompt=NAME,output=NAME, and time=NAME (seconds or a date) or time_ms=NAME; numbers are "
        "for a CSV without a header",
    )  # fmt: skip
    group.add_argument(
        "--requests", type=int, metavar="N", help="serve only the first N requests (default: all "
        f"of a trace; {SYNTHETIC_REQUESTS:,} that are drawn)",
    )  # fmt: skip
    group.add_argument(
        "--dataset", choices=list(PRESETS), help="draw requests like those of a data set, of "
        "answers from documents (rag), or of agents with tools (agents)",
    )  # fmt: skip
    lengths = "512, 100-500, normal:512:100 or lognormal:512:0.8"
    text = f"draw prompts of such lengths: {lengths}"
    group.add_argument("--input", metavar="LENGTHS", help=text)
    group.add_argument("--output", metavar="LENGTHS", help="draw outputs of such lengths")
    text = "users, each with one request at a time"
    group.add_argument("--users", type=int, metavar="N", help=text)
    group.add_argument(
        "--rate", type=float, metavar="RATE", help="requests per second; the times of a trace are "
        "scaled to it",
    )  # fmt: skip
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="SHAPE", help="shape of the gamma "
        "distribution of times between requests; 1: a Poisson process (default: %(default)s)",
    )  # fmt: skip
    text = "outputs of each request (default: %(default)s)"
    group.add_argument("--n", type=int, default=1, metavar="N", help=text)
    group.add_argument("--beam-search", action="store_true", help="the n outputs are beams")
    group.add_argument(
        "--shared-prefix", type=int, metavar="TOKENS", help="tokens that all prompts begin with "
        "(default: 0, or the dataset's)",
    )  # fmt: skip
    group.add_argument(
        "--turns", type=int, metavar="N", help="answers in a chat (default: 1, or the dataset's)"
    )
    group.add_argument(
        "--think-seconds", type=float, metavar="SECONDS", help="mean time from one turn of a chat "
        "to the next (default: 60, or the dataset's)",
    )  # fmt: skip
    text = "seed of all that is drawn (default: %(default)s)"
    group.add_argument("--seed", type=int, default=0, metavar="N", help=text)


class Setup:
    """What the flags ask to simulate."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.acceptance = acceptance_of(arguments)
        calibration = None
        if arguments.cost_model is not None:
            calibration = read_calibration(Path(arguments.cost_model))
        self.deployment = self._deployment(calibration)
        self.workload = self._workload()
        self.goals = Goals(arguments.ttft, arguments.tpot)
        for name in ("ttft", "tpot"):
            value = getattr(self.goals, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0 seconds, got {value}")
        for name in ("users", "requests"):
            value = getattr(arguments, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if arguments.users is not None and arguments.users > _MOST_USERS:
            raise ConfigError(f"users must be at most {_MOST_USERS:,}, got {arguments.users}")
        if arguments.rate is not None and not arguments.rate > 0:
            raise ConfigError(f"rate must be above 0 requests per second, got {arguments.rate}")

    @cached_property
    def limits(self) -> EngineLimits:
        """Limits of one engine. ConfigError: the model does not fit."""
        return self.deployment.limits()

    @property
    def max_model_len(self) -> int | None:
        """Whether or not the model fits."""
        deployment = self.deployment
        limits = limits_under(deployment.kv_allocator, deployment.config, deployment.cache)
        return limits.max_model_len

    @property
    def is_stored_rounded(self) -> bool:
        """Whether the checkpoint itself has rounded weights."""
        return self._arguments.quantization is None and self.deployment.model.form is not None

    @property
    def model_name(self) -> str:
        """On the hub, where it is known; else as it was given."""
        name = self._arguments.model or self.deployment.model.name
        return hub_name(name) or name

    @cached_property
    def trace(self) -> TraceFacts | None:
        """Facts about the trace; None: the workload is drawn."""
        return self.workload.facts() if isinstance(self.workload, Trace) else None

    @property
    def shares_prefixes(self) -> bool:
        if isinstance(self.workload, Trace):
            return self.workload.format.shares_prefixes
        return self.workload.shares_prefixes

    @property
    def num_requests(self) -> int | None:
        """Number of requests; None: all of the trace."""
        workload = self.workload
        return workload.limit if isinstance(workload, Trace) else workload.num_requests

    @property
    def has_times(self) -> bool:
        if isinstance(self.workload, Trace):
            return self.workload.format.has_times
        return self.workload.rate is not None

    def _deployment(self, calibration: Calibration | None) -> Deployment:
        arguments, machine = self._arguments, find_machine(self._arguments.machine)
        self._engine = self._engine_on(machine)
        model = self._model(calibration)
        settings = {name: getattr(arguments, name) for name in _SETTINGS}
        own = {} if self._engine is None else self._engine.settings(machine)
        for name in _OF_ENGINE:
            if settings[name] is None:
                settings[name] = own.get(name, getattr(arguments.settings, name))
        if calibration is not None:
            settings["kv_cache_memory_bytes"] = (
                settings["kv_cache_memory_bytes"] or calibration.pool_bytes
            )
            machine = replace(machine, name=calibration.machine)
        config = EngineConfig(**settings, seed=arguments.seed)
        if calibration is not None:
            _check_known(calibration, config)
        drafting = drafting_of(arguments, config.speculation, model, self._as_asked, calibration)
        machines, division = self._division()
        return Deployment(
            model,
            machine,
            machines,
            config,
            None if calibration is None else calibration.costs,
            drafting,
            arguments.kv_allocator,
            self._engine,
            division,
        )

    def _engine_on(self, machine: Machine) -> ServingEngine | None:
        """The engine that is asked about, with the share of memory that is given."""
        if self._arguments.engine is None:
            return None
        engine = ENGINES[self._arguments.engine]
        for name in engine.fixed:
            if getattr(self._arguments, name):
                raise ConfigError(f"{name}: {engine.title} has none like it, so it is not planned")
        share = self._arguments.gpu_memory_utilization
        return engine if machine.is_cpu else engine.with_share(share)

    def _division(self) -> tuple[int, Division]:
        """All machines, and how they share the model."""
        arguments = self._arguments
        stages, machines = arguments.pipeline_parallel_size, arguments.tensor_parallel_size
        groups, whole = arguments.data_parallel_size, arguments.enable_expert_parallel
        if self._engine is None and (stages, groups, whole) != (1, 1, False):
            raise ConfigError(
                "pipeline_parallel_size: pipeline stages are not simulated, since several steps of "
                "disjoint batches are under way at once, and the scheduler plans one after the "
                "other; use tensor_parallel_size"
                if stages != 1
                else "data_parallel_size and enable_expert_parallel are an engine's: give --engine"
            )
        if stages < 1 or (stages > 1 and machines > 1):
            raise ConfigError(
                f"pipeline_parallel_size must be at least 1, and without tensor_parallel_size, got "
                f"{stages}"
            )
        return machines * stages, Division(groups, whole, stages > 1)

    def _model(self, calibration: Calibration | None) -> ModelShape:
        arguments = self._arguments
        given: str | ModelShape | None = arguments.model
        if given is None and calibration is not None:
            given = calibration.model
        if given is None:
            raise ConfigError("name a model, or give the file of a calibrated one (--cost-model)")
        return self._as_asked(given, arguments.quantization)

    def _as_asked(self, given: str | ModelShape, quantization: str | None) -> ModelShape:
        """A model, or the one of this name, in the types that the flags say."""
        arguments = self._arguments
        model = named_model(given) if isinstance(given, str) else given
        if arguments.dtype != "auto":
            model = model.of_dtype(arguments.dtype)
        if quantization is not None:
            machine, engine = find_machine(arguments.machine), self._engine
            by = None if engine is None else partial(engine.rounded, machine=machine)
            model = rounded(model, quantization, by or ModelShape.rounded)
        if arguments.kv_cache_dtype != "auto":
            model = replace(model, kv_dtype=arguments.kv_cache_dtype)
        return model

    def _workload(self) -> Trace | Synthetic:
        arguments = self._arguments
        if arguments.trace is not None:
            for name in ("dataset", "input", "output"):
                if getattr(arguments, name) is not None:
                    raise ConfigError(f"--trace and --{name} contradict each other")
            if arguments.columns is not None:
                for name in ("trace_format", "time_unit"):
                    if getattr(arguments, name) is not None:
                        flag = name.replace("_", "-")
                        raise ConfigError(f"--columns and --{flag} contradict each other")
                path = Path(arguments.trace)
                return Trace.of_columns(path, arguments.columns, arguments.requests)
            path, form, unit = Path(arguments.trace), arguments.trace_format, arguments.time_unit
            return Trace.open(path, form, arguments.requests, unit)
        for name in ("columns", "time_unit"):
            if getattr(arguments, name) is not None:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is of a trace: give --trace FILE too")
        names = ("rate", "burstiness", "n", "beam_search", "shared_prefix", "turns")
        chosen: dict[str, Any] = {
            name: getattr(arguments, name) for name in (*names, "think_seconds", "seed")
        }
        for name in ("input", "output"):
            text = getattr(arguments, name)
            chosen[f"{name}_lengths"] = Lengths.parse(text) if text else None
        asked = {name: value for name, value in chosen.items() if value is not None}
        if arguments.dataset is None and not {"input_lengths", "output_lengths"} <= asked.keys():
            raise ConfigError(
                "say what is to be served: --trace FILE, --dataset NAME, or --input and --output"
            )
        asked["num_requests"] = arguments.requests or SYNTHETIC_REQUESTS
        if arguments.dataset is None:
            return Synthetic(**asked)
        return replace(PRESETS[arguments.dataset], **asked)


def _check_known(calibration: Calibration, config: EngineConfig) -> None:
    """ConfigError where it matters what something costs that the calibration does not know."""
    for what, field, asked in (
        ("swap", "swap_space", config.swap_space > 0),
        ("drafts", "speculative_config", config.speculation is not None),
    ):
        if asked and what in calibration.unknown:
            raise ConfigError(
                f"{field}: these costs, from {calibration.measured}, do not tell what that costs"
            )


def named_model(name: str) -> ModelShape:
    """A model of the catalogue, of a local file, or of the hub, from which only config.json is
    fetched.

    Raises:
        ModelError: it cannot be found, or is not understood.
    """
    owner, slash, own_name = name.partition("/")
    of_hub = slash and owner and own_name and "/" not in own_name and not owner.startswith(".")
    if not of_hub or find_known(name) is not None or Path(name).exists():
        return find_model(name)
    return replace(read_shape(config_file(name)), name=own_name)


def rounded(
    model: ModelShape,
    quantization: str,
    by: Callable[[ModelShape, str], ModelShape] = ModelShape.rounded,
) -> ModelShape:
    """The model with rounded weights. ConfigError: they are rounded already, in another way."""
    form = model.form
    if form is not None and quantization not in form.name:
        raise ConfigError(
            f"quantization is {quantization}, but the weights of {model.name} are stored rounded "
            f"already ({form.name}): leave it out"
        )
    return by(model, quantization)


def describe_machine(machine: Machine, tensor_parallel: int) -> str:
    return machine.name if tensor_parallel == 1 else f"{tensor_parallel} x {machine.name}"
