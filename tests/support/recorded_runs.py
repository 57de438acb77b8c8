"""An engine on a virtual clock, recorded as a server is; each step takes what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import quire
from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.protocol import PendingStep, RecoveryCosts, Step
from quire.engine.engine import Engine
from quire.engine.input_processor import InputProcessor, ModelOutputs
from quire.engine.recorder import RequestRecorder, StepRecorder
from quire.engine.scheduling import scheduler_of
from quire.engine.traces.request import TraceRequest
from quire.engine.work import sights_of, work_of
from quire.text.params import SamplingParams
from quire.text.tokenizer import load_tokenizer
from quire_lab.simulation import CostModel
from support.fake_model import FakeExecutor

_TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")

LIMITS = EngineLimits(
    kv_groups=(KVGroup((0,), 40),),
    block_size=4,
    max_model_len=120,
    max_num_seqs=8,
    max_num_batched_tokens=48,
    enable_prefix_caching=True,
    preemption_mode="recompute",
    scheduling_policy="fcfs",
    attention_sinks=0,
    max_num_sessions=0,
    max_sessions_per_client=1,
    max_queue_time=None,
    max_loras=0,
)


class Files(NamedTuple):
    trace: Path
    steps: Path


class Machine:
    """Its clock, and the processor time of the engine's thread."""

    def __init__(self) -> None:
        self.now = self.used = 1.0

    def clock(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.used


class _TimedExecutor(FakeExecutor):
    def __init__(self, machine: Machine, costs: CostModel, held_up: Callable[[], float]) -> None:
        super().__init__(LIMITS.num_blocks, LIMITS.block_size)
        self._machine, self._costs, self._held_up = machine, costs, held_up

    def submit(self, step: Step) -> PendingStep:
        seconds = self._costs.seconds(work_of(step))
        self._machine.used += seconds
        self._machine.now += seconds * self._held_up()
        return super().submit(step)


def record(
    directory: Path,
    requests: Sequence[TraceRequest],
    costs: CostModel,
    held_up: Callable[[], float] = lambda: 1.0,
) -> Files:
    """Serve requests at their times. ``held_up``: how many times as long a step takes."""
    machine = Machine()
    files = Files(directory / "trace.jsonl", directory / "steps.csv")
    told = {"model": "fake", "limits": LIMITS.values()}
    engine = Engine(
        scheduler_of(LIMITS, RecoveryCosts()),
        _TimedExecutor(machine, costs, held_up),
        InputProcessor(_TOKENIZER, ModelOutputs(50), max_model_len=120, seed=0),
        clock=machine.clock,
    )
    engine.events.add(RequestRecorder(files.trace, LIMITS.block_size, 0.5, engine=told))
    engine.events.add(
        StepRecorder(
            files.steps, sights_of(LIMITS.kv_groups), 0.5, machine.clock, machine.processor
        )
    )
    coming = [replace(one, arrival=one.arrival + 2.0) for one in requests]
    while coming or engine.has_work:
        if not engine.has_work:
            machine.now = max(machine.now, coming[0].arrival)
        while coming and coming[0].arrival <= machine.now:
            one = coming.pop(0)
            params = SamplingParams(max_tokens=one.output_tokens, ignore_eos=True, seed=1)
            number = len(coming)
            prompt = [(number * 7 + i * i) % 49 + 1 for i in range(one.prompt_tokens)]
            engine.add_request(str(number), prompt, params, one.arrival)
        engine.step()
    engine.close()
    return files
