"""Chunks through the device's executor give what they give in main memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup, layers_by_window
from quire.core.memory import BlockTable, KeptState
from quire.execution.batch import pack
from quire.execution.executor import ModelExecutor
from quire.execution.forward import DirectForward, Hidden, Worker
from quire.execution.gpu.forward import DeviceForward
from quire.execution.gpu.graphs import StepSize
from quire.execution.gpu.inputs import DeviceInputs
from quire.execution.gpu.memory import worst_step
from quire.execution.kv.cache import KVCache
from quire.kernels.layer_memory import StateShape
from quire.kernels.ops import Kernels
from quire.kernels.reference import ReferenceKernels
from quire.models import loader
from quire.models.base import Model
from quire.models.loader import load_model
from quire.models.streaming import Streaming
from support.capture_rules import AsksTheDeviceError, capture_rules
from support.chunks import make_chunk
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.small_models import FAMILIES

ModelDir = Callable[[str], Path]

BLOCK_SIZE = 4
NUM_BLOCKS = 12


class Recorder:
    """Keeps what was recorded, and gives its result in the same tensor each time."""

    def __init__(self) -> None:
        self.replayed = 0

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result = compute().clone()

        def replay() -> Tensor:
            self.replayed += 1
            return result.copy_(compute())

        return replay


STEPS = [
    [make_chunk(0, 0, 7), make_chunk(1, 0, 3)],
    [make_chunk(0, 7, 1), make_chunk(1, 3, 2), make_chunk(2, 0, 1)],
    [make_chunk(0, 8, 1), make_chunk(1, 5, 1), make_chunk(2, 1, 1)],
    [make_chunk(1, 6, 1)],
    [make_chunk(seq_id, start, 1) for seq_id, start in ((2, 2), (0, 9), (1, 7))],
]


SIZES = [StepSize(1, 1, True), StepSize(4, 4, True), StepSize(8, 5, False), StepSize(16, 5, False)]


def groups_of(model: Model, count: int) -> list[KVGroup]:
    """The KV groups of a model, those of states last, each with so many blocks."""
    shapes = model.kv_shapes
    states = tuple(i for i, shape in enumerate(shapes) if isinstance(shape, StateShape))
    groups = []
    for layers in layers_by_window(model.windows).values():
        paged = tuple(layer for layer in layers if layer not in states)
        groups += [KVGroup(paged, count)] if paged else []
    kept = KeptState(BLOCK_SIZE, BLOCK_SIZE)
    return [*groups, *([KVGroup(states, count, state=kept)] if states else [])]


def inputs_for(kv_groups: list[KVGroup], tokens: int, seqs: int) -> DeviceInputs:
    sinks = [one.num_sink_blocks(BLOCK_SIZE) for one in kv_groups if one.state is None]
    states = kv_groups[-1].state is not None
    return DeviceInputs(torch.device("cpu"), tokens, seqs, 4, sinks, BLOCK_SIZE, states)


def run(model: Model, kernels: Kernels, sizes: list[StepSize] | None) -> tuple[list[Hidden], int]:
    """Every step's hidden states; ``sizes`` None: in main memory; and how many were replayed."""
    kv_groups = groups_of(model, NUM_BLOCKS)
    cache = KVCache(model.kv_shapes, kv_groups, BLOCK_SIZE, model.dtype, kernels)
    recorder = Recorder()
    forward: DirectForward | DeviceForward = DirectForward(model, cache.layers, kernels)
    if sizes is not None:
        inputs = inputs_for(kv_groups, 16, 4)
        forward = DeviceForward(model, cache.layers, kernels, inputs)
        if sizes:
            forward.record(sizes, recorder)
    found = []
    for step in STEPS:
        chunks = []
        for chunk in step:
            slot = BlockTable((5 - chunk.seq_id,), BLOCK_SIZE, keeps_state=True)
            first, *further = [chunk.table if one.state is None else slot for one in kv_groups]
            chunks.append(chunk._replace(table=first._replace(further=tuple(further))))
        ends = [sum(len(c.token_ids) for c in chunks[: i + 1]) - 1 for i in range(len(chunks))]
        with torch.inference_mode():
            states, asked, *_ = forward(pack(chunks, BLOCK_SIZE, ends), lambda: torch.zeros(0))
        found.append(Hidden(states[: ends[-1] + 1].clone(), asked.clone()))
    return found, recorder.replayed


@pytest.mark.parametrize("family", ["llama", "opt", "qwen2_window"])
def test_eager_steps_equal_those_in_main_memory(family: str, model_dir: ModelDir) -> None:
    model = load_model(model_dir(family), "float32")
    expected, _ = run(model, ReferenceKernels(), None)
    found, _ = run(model, ReferenceKernels(), [])
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.states, theirs.states)
        assert torch.equal(mine.asked, theirs.asked)


@pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")
@pytest.mark.parametrize("family", ["longrope", "qwen2_window", "qwen3_5"])
def test_replayed_steps_equal_unpadded_ones(family: str, model_dir: ModelDir) -> None:
    model = load_model(model_dir(family), "float32")
    eager, none = run(model, triton_kernels(), [])
    replayed, count = run(model, triton_kernels(), SIZES)
    exact, _ = run(model, ReferenceKernels(), None)
    assert none == 0
    assert count == len(STEPS)
    for first, second, judge in zip(eager, replayed, exact, strict=True):
        # Products of more rows may round otherwise.
        assert (first.states - second.states).abs().max() < 1e-4
        assert (first.asked - second.asked).abs().max() < 1e-4
        assert (second.states - judge.states).abs().max() < 1e-3


STATES = ("qwen3_5", "lfm2", "granite_hybrid_dense", "falcon_h1", "mamba2")
REPLAYABLE = [*(family for family in FAMILIES if family != "gpt2"), *STATES]


@pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")
@pytest.mark.parametrize("streaming", [None, Streaming(window=8, sinks=2)])
@pytest.mark.parametrize("family", REPLAYABLE)
def test_what_is_recorded_asks_the_device_for_nothing(
    family: str,
    streaming: Streaming | None,
    model_dir: ModelDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime.interpreter import GridExecutor

    # Weights as they are on a GPU: none is packed.
    monkeypatch.setattr(loader, "choose_products", lambda *_: None)
    try:
        model = load_model(model_dir(family), "float32", streaming=streaming)
    except ConfigError:
        pytest.skip("cannot stream")
    assert model.replayable
    kv_groups = groups_of(model, 1)
    kernels = triton_kernels()
    cache = KVCache(model.kv_shapes, kv_groups, BLOCK_SIZE, model.dtype, kernels)
    inputs = inputs_for(kv_groups, 16, 4)
    launched: list[object] = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda *given, **named: launched.append(given))

    class Strict:
        def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
            with capture_rules():
                compute()
            return compute

    DeviceForward(model, cache.layers, kernels, inputs).record(SIZES, Strict())
    assert len(launched) > 2 * len(model.kv_shapes)


def test_asking_while_recording_is_found() -> None:
    x = torch.arange(3.0)
    for asks in (
        lambda: x.sum().item(),
        lambda: x.tolist(),
        lambda: bool(x[0] > 0),
        lambda: x[x > 1],
        lambda: torch.tensor([1.0]),
        lambda: x.repeat_interleave(torch.arange(3)),
    ):
        with capture_rules(), pytest.raises(AsksTheDeviceError):
            asks()


def test_the_worst_step_is_computed_in_one_block(model_dir: ModelDir) -> None:
    model = load_model(model_dir("llama"), "float32")
    cache = KVCache(
        model.kv_shapes, [KVGroup((0, 1), 1)], BLOCK_SIZE, model.dtype, ReferenceKernels()
    )
    forward = DirectForward(model, cache.layers, ReferenceKernels())
    step = worst_step(600, 7, model.max_positions, BLOCK_SIZE, [0])
    assert step.num_tokens == 600
    assert len(step.chunks) == 7
    assert max(len(chunk.token_ids) for chunk in step.chunks) <= model.max_positions
    worker = Worker(model, cache, forward, ReferenceKernels())
    result = ModelExecutor(worker).submit(step).collect()
    assert all(len(outcome.tokens) == 1 for outcome in result.outcomes.values())
    assert len(result.outcomes) == 7


def test_a_small_worst_step_has_no_more_sequences_than_tokens() -> None:
    step = worst_step(3, 7, 256, BLOCK_SIZE, [0, 1])
    assert step.num_tokens == len(step.chunks) == 3
    assert all(len(chunk.table.kv_groups) == 2 for chunk in step.chunks)
