"""The simulator and the engine, given the same arrivals and step times, make the same Steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.capabilities.speculation import Proposal, Speculation
from quire.capabilities.speculation.proposal import DraftModelDrafter
from quire.core.protocol import Chunk, Request, Roster
from quire.core.scheduling.sequence import Sequence as Branch
from quire.engine.assembly import build_engine
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.input_processor import Prompt
from quire.engine.recorder import RequestRecorder
from quire.text.params import SamplingParams
from quire_lab.contiguous import PAGED
from quire_lab.simulation import (
    MODELS,
    AcceptanceProfile,
    RequestRecord,
    SimulatedDrafting,
    Simulator,
)
from quire_lab.simulation.cost_model import CostsWithDraft
from quire_lab.simulation.drafting import SmallerModel
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import SimulationResult
from quire_lab.workload import Trace
from support.lora import save_adapter
from support.regions import engines_under
from support.timed_executor import (
    BEYOND,
    BY_MODEL,
    Costs,
    PassCosts,
    Seen,
    TimedExecutor,
    computed,
    drafts_of,
    seen,
)

SYSTEM = "You answer questions about Python's standard library, briefly and to the point. "
DRAFTING = SimulatedDrafting("ngram", 6, AcceptanceProfile((0.5, 0.8, 0.9), coverage=0.8))
ADAPTERS = ("a", "b", "c")
TOPICS = ("list", "dict", "set", "open", "range", "zip", "map", "print")


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
@pytest.mark.parametrize("kind", ["", "beams", "drafts"])
def test_the_same_steps_block_for_block(
    tmp_path: Path, options: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines_under(monkeypatch, options.get("kv_allocator", PAGED))
    options = {name: value for name, value in options.items() if name != "kv_allocator"}
    facts = {"kv_cache_memory_bytes": "4MiB", "max_model_len": 400, "dtype": "float32", **options}
    result = compare_steps(tmp_path, EngineConfig.create(facts), kind)
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
        ("qwen2_window", {"kv_cache_memory_bytes": 88 * 4 * 512}),
        (
            "qwen2_window",
            {"kv_cache_memory_bytes": 88 * 4 * 512, "swap_space": 0.01, "preemption_mode": "swap"},
        ),
        ("gemma2", {"kv_cache_memory_bytes": 88 * 4 * 800}),
        ("gemma2", {"kv_allocator": "pow2"}),
    ],
)
@pytest.mark.parametrize("kind", ["", "beams", "drafts"])
def test_the_same_steps_of_models_with_windows(
    family: str,
    options: dict[str, Any],
    kind: str,
    model_dir: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines_under(monkeypatch, options.get("kv_allocator", PAGED))
    options = {name: value for name, value in options.items() if name != "kv_allocator"}
    config = EngineConfig.create({"model": str(model_dir(family)), **WINDOWED, **options})
    result = compare_steps(tmp_path, config, kind, longest_prompt=60)
    gave_way = result.preemptions.swaps + result.preemptions.recomputes > 0
    if family != "mistral" and kind in (
        "",
        "beams",
    ):  # a who has a window of blocks rarely needs more
        assert gave_way == ("kv_cache_memory_bytes" in options)


@pytest.mark.parametrize("blocks", [1024, 60])
@pytest.mark.parametrize("kind", ["", "drafts"])
def test_the_same_steps_of_adapters_that_wait_for_each_other(
    blocks: int, kind: str, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    model = model_dir("llama")
    modules = [f"{name}={save_adapter(tmp_path / name, model, ord(name))}" for name in ADAPTERS]
    options = {"kv_cache_memory_bytes": blocks * 4 * 1024, "lora_modules": modules, "max_loras": 2}
    config = EngineConfig.create({"model": str(model), **WINDOWED, "enable_lora": True, **options})
    result = compare_steps(tmp_path, config, kind, longest_prompt=60)
    assert (result.preemptions.recomputes > 0) == (blocks == 60)


MODELS_THAT_DRAFT = [
    (
        None,
        None,
        {"kv_cache_memory_bytes": "1225KiB", "swap_space": 0.01, "preemption_mode": "swap"},
    ),
    ("qwen2_window", "mistral", {"kv_cache_memory_bytes": 28 * 4 * 768, **WINDOWED}),
    ("qwen3_5", "mistral", {"kv_cache_memory_bytes": 2**18, **WINDOWED}),
    ("qwen3_5", "lfm2", {"kv_cache_memory_bytes": 2**18, **WINDOWED}),
]


@pytest.mark.parametrize(("family", "draft", "options"), MODELS_THAT_DRAFT)
def test_the_same_steps_and_passes_of_a_model_that_drafts(
    family: str | None,
    draft: str | None,
    options: dict[str, Any],
    model_dir: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    speculation = {"method": "draft", "num_speculative_tokens": BY_MODEL.most}
    facts: dict[str, Any] = {"max_model_len": 260, "dtype": "float32", **options}
    if family is not None and draft is not None:
        monkeypatch.setattr("quire.engine.assembly.draft.check_draft", lambda *_: None)
        speculation["model"] = str(model_dir(draft))
        facts |= {"model": str(model_dir(family)), "max_model_len": 200}
    config = EngineConfig.create({**facts, "speculative_config": speculation})
    result = compare_steps(tmp_path, config, "model", None if family is None else 60)
    swaps = bool(options.get("swap_space"))
    assert (result.preemptions.swaps > 0, result.preemptions.recomputes > 0) == (swaps, not swaps)


def compare_steps(
    tmp_path: Path, config: EngineConfig, kind: str, longest_prompt: int | None = None
) -> SimulationResult:
    """Serve and record with the real engine, and simulate that by its limits."""
    built, capacity = build_engine(config)
    count = 12 if kind == "model" else 24
    drafted, draft = kind in ("drafts", "model"), capacity.draft
    num_draft_layers = 0 if draft is None else draft.num_layers
    executor = TimedExecutor(built.executor, capacity.limits, num_draft_layers)
    adapters = built.capabilities.adapters
    if adapters is not None:  # there is no waiting for what a simulator has at once
        loaded = {adapter: source.load() for adapter, source in adapters._sources.items()}
        adapters.weights |= loaded
    path = tmp_path / "trace.jsonl"
    recorder = RequestRecorder(path, config.block_size, 0.0, drafts=drafted)
    engine = Engine(
        built.scheduler,
        executor,
        built.input_processor,
        clock=lambda: executor.now,
    )
    engine.events.add(recorder)
    if drafted:
        texts = executor.texts = plain_texts(config, longest_prompt, count)
        drafter = DraftModelDrafter() if kind == "model" else Knowing(texts)
        speculation = Speculation([drafter], DRAFTING.most)
        engine.use(engine.capabilities._replace(speculation=speculation))
    adapted, beams = config.enable_lora, kind == "beams"
    measured, _ = serve(engine, executor, beams, longest_prompt, adapted=adapted, count=count)
    recorder.close()

    steps: Seen = []
    roster = Roster()
    drafting, costs = (DRAFTING if kind == "drafts" else None), Costs()
    if draft is not None:
        shape = replace(MODELS["llama-2-7b"], num_layers=draft.num_layers)
        drafting = replace(BY_MODEL, model=SmallerModel(shape))
        costs = CostsWithDraft(costs, PassCosts())
    simulator = Simulator(
        capacity.limits, costs, KeptResults(records=None), skip_ahead=False,
        on_step=lambda now, step: steps.append(seen(now, step, roster.follow(step))),
        drafting=drafting,
    )  # fmt: skip
    passes: list[Any] = []
    if (simulated := simulator.engine._draft_model) is not None:
        its_passes = simulated.passes
        simulated.passes = lambda step: noted(its_passes(step), passes)
    result = simulator.run(Trace.open(path))
    assert passes == executor.passes
    if drafted:
        assert 100 < result.drafts.num_accepted_tokens < result.drafts.num_draft_tokens
        recorded = [request.drafts for request in Trace.open(path)]
        assert tuple(map(sum, zip(*recorded, strict=True))) == result.drafts
    assert len(steps) == len(executor.steps)
    for virtual, real in zip(steps, executor.steps, strict=True):
        assert virtual == real
    assert {record.request_id: story(record) for record in result.records} == measured
    if not drafted:  # steps that verify anything are not skipped
        ahead = Simulator(capacity.limits, Costs(), KeptResults(records=None)).run(Trace.open(path))
        assert ahead == result
    return result


def noted(passes: list[list[Chunk]], where: list[Any]) -> list[list[Chunk]]:
    where += map(computed, passes)
    return passes


class Knowing:
    """Right where the simulated drafter is, about the real texts."""

    name, num_bytes = DRAFTING.method, 0

    def __init__(self, texts: dict[str, list[list[int]]]) -> None:
        self._texts = texts

    def propose(self, request: Request, branch: Branch, most: int) -> Proposal | None:
        assert DRAFTING.acceptance is not None
        known, name = branch.num_output_tokens, request.request_id
        right = DRAFTING.acceptance.num_right(f"0,{name},{branch.index}", known, most)
        if right is None:
            return None
        tokens = drafts_of(self._texts, request, branch.index, known, right, most)
        chances = [DRAFTING.acceptance.chance(place) for place in range(len(tokens))]
        return Proposal(tokens, chances)

    def close(self, seq_id: int) -> None:
        pass


def plain_texts(
    config: EngineConfig, longest_prompt: int | None, count: int
) -> dict[str, list[list[int]]]:
    """What is answered without drafts, and with them, and what nobody gets to see of it."""
    engine, _ = build_engine(replace(config, speculative_config=None))
    _, texts = serve(engine, None, False, longest_prompt, adapted=config.enable_lora, count=count)
    return {name: [text + [1] * BEYOND for text in each] for name, each in texts.items()}


def serve(
    engine: Engine,
    executor: TimedExecutor | None,
    beams: bool,
    longest_prompt: int | None,
    *,
    adapted: bool,
    count: int,
) -> tuple[dict[str, tuple[Any, ...]], dict[str, list[list[int]]]]:
    """Questions that arrive while others are answered; what each of them cost, and its texts.

    executor: whose clock tells when they arrive; None: all at once. count: of them.
    """
    arrivals = [0.08 * number * (number % 3) for number in range(count)]
    arrivals.sort()
    told: dict[str, tuple[Any, ...]] = {}
    texts: dict[str, list[list[int]]] = {}
    number = 0
    while number < len(arrivals) or engine.has_work:
        if executor is not None and not engine.has_work:
            executor.now = max(executor.now, arrivals[number])
        while number < len(arrivals) and (executor is None or arrivals[number] <= executor.now):
            text = cut(prompt(number), longest_prompt, number)
            given: Prompt = text
            if adapted and number % 4:
                given = {"prompt": text, "adapter": ADAPTERS[number % 4 - 1]}
            engine.add_request(str(number), given, params(number, beams), arrivals[number])
            number += 1
        for delta in engine.step():
            if delta.final is not None:
                told[delta.request_id] = facts_of(delta.final.metrics)
                texts[delta.request_id] = [list(o.token_ids) for o in delta.final.outputs]
    return told, texts


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
        metrics.num_preemptions, metrics.num_drafts, metrics.num_draft_tokens,
        metrics.num_accepted_tokens, metrics.ttft, metrics.tpot, metrics.e2e_latency,
    )  # fmt: skip
