"""The simulator and the engine, given the same arrivals and step times, make the same Steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.build import build_engine
from quire.capacity import EngineLimits
from quire.config import EngineConfig
from quire.engine import Engine, RequestRecorder
from quire.scheduling import Executor, RecoveryCosts, SamplingParams, Step, StepResult
from quire.simulation import RequestRecord, Simulator, Work, sights_of, work_of
from quire.simulation.result import SimulationResult
from quire.simulation.sampling import SimulatedModel
from quire.workload import Trace

Seen = list[tuple[float, Any, Any, Any]]
SYSTEM = "You answer questions about Python's standard library, briefly and to the point. "
TOPICS = ("list", "dict", "set", "open", "range", "zip", "map", "print")


class Costs:
    """Seconds from what a step has to do: for the engine's clock and for the simulator."""

    def seconds(self, work: Work) -> float:
        return (
            0.01 + 2e-4 * work.prefill_tokens + 1e-3 * work.decode_seqs
            + 1e-6 * work.decode_context + 1e-3 * work.swapped_blocks
        )  # fmt: skip

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts()


class TimedExecutor:
    """Carries out steps with the real model, on a clock that says what they ought to take.

    Beams' candidates come from the simulation's seeded model, for no recording tells how beams
    branched. Their tokens are each request's own, as they are in a simulation.
    """

    def __init__(self, executor: Executor, limits: EngineLimits) -> None:
        self.now = 0.0
        self._sights = sights_of(limits.lanes)
        self.steps: Seen = []
        self._executor = executor
        self._beams = SimulatedModel(seed=0)

    def execute(self, step: Step) -> StepResult:
        self.steps.append(seen(self.now, step))
        self.now += Costs().seconds(work_of(step, self._sights))
        result = self._executor.execute(step)
        beams = [chunk for chunk in step.chunks if chunk.num_candidates]
        candidates = self._beams.results(Step([], beams, []), {}).candidates
        for chunk in beams:
            first = 11 * (1 + int(chunk.request.request_id))
            result.candidates[chunk.seq_id] = [
                (first + rank, logprob)
                for rank, (_, logprob) in enumerate(candidates[chunk.seq_id])
            ]
        return result


def seen(now: float, step: Step) -> tuple[float, Any, Any, Any]:
    # Not seq_id: the simulator gives numbers to those in line later, if the line is long.
    chunks = [
        (c.request.request_id, c.branch, len(c.token_ids), c.start, c.table, c.num_samples)
        for c in step.chunks
    ]
    return now, step.moves, chunks, step.decisions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_cache_memory_bytes": "1700KiB"},  # 26 blocks of 16: some must give way
        {"kv_cache_memory_bytes": "1700KiB", "swap_space": 0.01, "preemption_mode": "swap"},
        {"kv_cache_memory_bytes": "2MiB", "block_size": 4, "max_num_batched_tokens": 24},
        {"kv_cache_memory_bytes": "2MiB", "kv_allocator": "oracle"},
        {"enable_prefix_caching": False, "max_num_seqs": 3},
        {"max_model_len": None, "window": 64, "attention_sinks": 4, "max_num_batched_tokens": 64},
    ],
)
@pytest.mark.parametrize("beams", [False, True])
def test_the_same_steps_block_for_block(
    tmp_path: Path, options: dict[str, Any], beams: bool
) -> None:
    facts = {"kv_cache_memory_bytes": "4MiB", "max_model_len": 400, "dtype": "float32", **options}
    result = compare_steps(tmp_path, EngineConfig.create(facts), beams)
    if options.get("kv_cache_memory_bytes") == "1700KiB":
        swaps = bool(options.get("swap_space"))
        assert (result.preemptions.swaps > 0, result.preemptions.recomputes > 0) == (
            swaps, not swaps
        )  # fmt: skip


WINDOWED = {"block_size": 4, "max_num_batched_tokens": 24, "dtype": "float32"}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mistral", {}),
        ("mistral", {"kv_cache_memory_bytes": 22 * 4 * 512, "max_num_seqs": 8}),
        ("qwen2_window", {}),  # a layer without a window, and one with
        ("qwen2_window", {"kv_cache_memory_bytes": 120 * 4 * 512}),
        (
            "qwen2_window",
            {"kv_cache_memory_bytes": 120 * 4 * 512, "swap_space": 0.01, "preemption_mode": "swap"},
        ),
        ("gemma2", {"kv_cache_memory_bytes": 120 * 4 * 800}),
        ("gemma2", {"kv_allocator": "pow2"}),
    ],
)
@pytest.mark.parametrize("beams", [False, True])
def test_the_same_steps_of_models_with_windows(
    family: str,
    options: dict[str, Any],
    beams: bool,
    model_dir: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    config = EngineConfig.create({"model": str(model_dir(family)), **WINDOWED, **options})
    result = compare_steps(tmp_path, config, beams, longest_prompt=60)
    gave_way = result.preemptions.swaps + result.preemptions.recomputes > 0
    if family != "mistral":  # who has a window of blocks rarely needs more
        assert gave_way == ("kv_cache_memory_bytes" in options)


def compare_steps(
    tmp_path: Path, config: EngineConfig, beams: bool, longest_prompt: int | None = None
) -> SimulationResult:
    """Serve and record with the real engine, and simulate that by its limits."""
    built, capacity = build_engine(config)
    executor = TimedExecutor(built.executor, capacity.limits)
    path = tmp_path / "trace.jsonl"
    recorder = RequestRecorder(path, config.block_size, 0.0)
    engine = Engine(
        built.scheduler, executor, built.intake, clock=lambda: executor.now, recorder=recorder
    )
    measured = serve(engine, executor, beams, longest_prompt)
    recorder.close()

    steps: Seen = []
    simulator = Simulator(
        capacity.limits, Costs(), skip_ahead=False, keep_records=None,
        on_step=lambda now, step: steps.append(seen(now, step)),
    )  # fmt: skip
    result = simulator.run(Trace.open(path))
    assert len(steps) == len(executor.steps)
    for virtual, real in zip(steps, executor.steps, strict=True):
        assert virtual == real
    assert {record.request_id: story(record) for record in result.records} == measured
    ahead = Simulator(capacity.limits, Costs(), keep_records=None).run(Trace.open(path))
    assert ahead == result
    return result


def serve(
    engine: Engine, executor: TimedExecutor, beams: bool, longest_prompt: int | None
) -> dict[str, tuple[Any, ...]]:
    """Questions that arrive while others are answered; what each of them cost."""
    arrivals = [0.08 * number * (number % 3) for number in range(24)]
    arrivals.sort()
    told: dict[str, tuple[Any, ...]] = {}
    number = 0
    while number < len(arrivals) or engine.has_work:
        if not engine.has_work:
            executor.now = max(executor.now, arrivals[number])
        while number < len(arrivals) and arrivals[number] <= executor.now:
            text = cut(prompt(number), longest_prompt, number)
            engine.add_request(str(number), text, params(number, beams), arrivals[number])
            number += 1
        for delta in engine.step():
            if delta.final is not None:
                told[delta.request_id] = facts_of(delta.final.metrics)
    return told


def prompt(number: int) -> str:
    topic = TOPICS[number % len(TOPICS)]
    return SYSTEM * (1 + number % 2) + f"What is {topic}? " * (1 + number % 5)


def cut(text: str, longest: int | None, number: int) -> str:
    """Its beginning, in which many are alike, or its end."""
    if longest is None:
        return text
    return text[:longest] if number % 2 else text[-longest:]


def params(number: int, beams: bool) -> SamplingParams:
    if beams and number % 3 == 1:
        return SamplingParams(
            n=2 + number % 2, use_beam_search=True, temperature=0.0, max_tokens=20 + number,
            ignore_eos=True,
        )  # fmt: skip
    if number % 6 == 5:  # outputs that part at once, and are of one length
        return SamplingParams(n=2, temperature=5.0, max_tokens=30, ignore_eos=True, seed=number)
    return SamplingParams(temperature=0.8, max_tokens=20 + 5 * number, seed=number)


def story(record: RequestRecord) -> tuple[Any, ...]:
    assert record.metrics is not None
    return facts_of(record.metrics)


def facts_of(metrics: Any) -> tuple[Any, ...]:
    return (
        metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.cached_tokens,
        metrics.peak_blocks, metrics.block_seconds, metrics.copied_blocks,
        metrics.num_preemptions, metrics.ttft, metrics.tpot, metrics.e2e_latency,
    )  # fmt: skip
