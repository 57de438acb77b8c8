"""The systems that the paper compares, and how many requests a second each can sustain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from quire.engine.config import EngineConfig
from quire.engine.traces.request import TraceRequest
from quire_lab.reproduction.request_batching import serve_in_batches
from quire_lab.simulation.catalogue.machines import find_machine
from quire_lab.simulation.catalogue.models import find_model
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.simulator import Simulator
from quire_lab.workload import DATASETS, Synthetic
from quire_lab.workload.clipping import asking_pow2

MAX_MODEL_LEN = 2048
"""Longest sequence of the paper's experiments, in tokens."""

READABLE = 0.2
"""Seconds per token: about as fast as people read (238 words a minute, Brysbaert 2019). A rate is
sustained while the mean normalised latency stays below."""


@dataclass(frozen=True)
class MemorySystem:
    """A way to allocate KV memory under iteration-level scheduling.

    asks_pow2: a request's limit is the power of two above its output, as the paper's Orca (Pow2)
    "over-reserves the space for outputs by at most 2×"; the allocator that reserves the limit then
    reserves that much from the start.
    """

    name: str
    kv_allocator: str
    asks_pow2: bool = False


ORCA_MAX = MemorySystem("Orca (Max)", "max")
ORCA_POW2 = MemorySystem("Orca (Pow2)", "oracle", asks_pow2=True)
ORCA_ORACLE = MemorySystem("Orca (Oracle)", "oracle")
PAGED = MemorySystem("paged", "paged")
SYSTEMS = (ORCA_MAX, ORCA_POW2, ORCA_ORACLE, PAGED)
FASTER_TRANSFORMER = "FasterTransformer"

_SETUPS = {
    "opt-13b": ("opt-13b", "a100-40", 1),
    "opt-66b": ("opt-66b", "a100-40", 4),
    "opt-175b": ("opt-175b", "a100-80", 8),
    "llama-13b": ("llama-13b", "a100-40", 1),
}

_SETTINGS = EngineConfig(
    max_model_len=MAX_MODEL_LEN,
    max_num_seqs=256,
    enable_prefix_caching=False,
    enforce_eager=True,
)
"""vLLM's of 2023, as far as the paper does not give its own; it recorded no steps."""


def deployment(model: str) -> Deployment:
    """The model on the machines of the paper's table 1 (LLaMA-13B: section 6.4)."""
    name, machine, parallel = _SETUPS[model]
    return Deployment(find_model(name), find_machine(machine), parallel, _SETTINGS)


def requests(
    dataset: str,
    rate: float,
    count: int,
    seed: int,
    n: int = 1,
    beam_search: bool = False,
    longest_output: int = MAX_MODEL_LEN - 1,
) -> Iterator[TraceRequest]:
    """Poisson arrivals with a dataset's lengths, cut to what the model takes: prompts first."""
    inputs, outputs = DATASETS[dataset]
    drawn = Synthetic(count, inputs, outputs, rate, n=n, beam_search=beam_search, seed=seed)
    for request in drawn:
        output = min(request.output_tokens, longest_output)
        prompt = min(request.prompt_tokens, MAX_MODEL_LEN - output)
        yield replace(request, prompt_tokens=prompt, output_tokens=output)


def serve(
    where: Deployment, system: MemorySystem, workload: Iterable[TraceRequest], **settings: object
) -> SimulationResult:
    """Simulate. ``settings``: fields of EngineConfig."""
    if system.asks_pow2:
        workload = (asking_pow2(request, MAX_MODEL_LEN) for request in workload)
    limits = where.under(system.kv_allocator).configured(**settings).limits()
    return Simulator(limits, where.cost_model(limits.block_size)).run(workload)


def batch_latency(where: Deployment, workload: Iterable[TraceRequest]) -> float:
    """Mean normalised latency under request-level batching."""
    batch = where.slots // MAX_MODEL_LEN
    return serve_in_batches(workload, batch, where.cost_model(16)).normalized_latency


def sustained(
    latency: Callable[[float], float],
    first: float,
    refinements: int,
    furthest: float = math.inf,
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """The rate up to which ``latency(rate)`` stays below READABLE, and all measurements.

    Goes up or down from ``first`` by halves until the limit is between two rates, halves that
    interval ``refinements`` times, and then interpolates, all in logarithms. A rate of ``furthest``
    times the first one that is still sustained is the answer.
    """
    points: dict[float, float] = {}

    def is_sustained(rate: float) -> bool:
        points[rate] = latency(rate)
        return points[rate] < READABLE

    low = high = first
    if is_sustained(first):
        while is_sustained(high := low * 1.5):
            low = high
            if low > furthest * first:
                return low, tuple(sorted(points.items()))
    else:
        while not is_sustained(low := high / 1.5):
            high = low
    for _ in range(refinements):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_sustained(middle) else (low, middle)
    below, above = math.log(points[low]), math.log(points[high])
    share = (math.log(READABLE) - below) / (above - below)
    return low * (high / low) ** share, tuple(sorted(points.items()))
