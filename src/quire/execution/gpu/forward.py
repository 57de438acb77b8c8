"""``Forward`` on a GPU: batches go there in one copy, and recorded launches are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.execution.batch import Fields, StepBatch
from quire.execution.forward import Hidden, Sampled, asked_of
from quire.execution.gpu.graphs import LaunchRecorder, RecordedSteps, StepSize
from quire.execution.gpu.inputs import DeviceInputs
from quire.kernels.layer_memory import LayerMemory
from quire.kernels.ops import Kernels, Texts
from quire.models.base import Model


class DeviceForward:
    """A ``Forward``. Computes where the model's weights are."""

    def __init__(
        self, model: Model, layers: Sequence[LayerMemory], kernels: Kernels, inputs: DeviceInputs
    ) -> None:
        self._model = model
        self._layers = layers
        self._kernels = kernels
        self._inputs = inputs
        self._recorded: RecordedSteps | None = None

    @torch.inference_mode()
    def record(self, sizes: Sequence[StepSize], recorder: LaunchRecorder) -> None:
        """From now on, replay what is launched for batches that fit in one of ``sizes``."""

        def compute(size: StepSize) -> Callable[[], Tensor]:
            inputs = self._inputs.load_idle(size)
            return lambda: self._compute(inputs)

        self._recorded = RecordedSteps(sizes, compute, recorder)

    def __call__(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        size = None
        if self._recorded is not None:
            size = self._recorded.size_for(batch.header.tokens, batch.header.seqs)
        inputs = self._inputs.load(batch, sampled, size)
        if self._recorded is not None and size is not None:
            states = self._recorded.replay(size)
        else:
            states = self._compute(inputs)
        return Hidden(states, asked_of(states, batch, inputs.asked))

    def go_on(self, texts: Texts, vocab_size: int) -> Tensor | None:
        return None

    def _compute(self, inputs: Fields) -> Tensor:
        return self._model.forward(inputs.token_ids, inputs.attention, self._layers, self._kernels)
