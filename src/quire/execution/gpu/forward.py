"""``Forward`` on a GPU: batches go there in one copy, decodes are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.execution.batch import build_batch
from quire.execution.forward import NOT_FED, BlockStore, Fed, Hidden, asked_of
from quire.execution.gpu.graphs import RecordedDecodes, Recorder
from quire.execution.gpu.inputs import DeviceInputs, Inputs
from quire.kernels.ops import Kernels
from quire.model import Model
from quire.scheduling import Chunk


class DeviceForward:
    """Computes where the model's weights are."""

    def __init__(
        self, model: Model, kv_cache: BlockStore, kernels: Kernels, inputs: DeviceInputs
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._kernels = kernels
        self._inputs = inputs
        self._recorded: RecordedDecodes | None = None

    @torch.inference_mode()
    def record(self, sizes: Sequence[int], recorder: Recorder) -> None:
        """From now on, replay the decodes of up to the largest of ``sizes`` sequences."""

        def compute(size: int) -> Callable[[], Tensor]:
            inputs = self._inputs.load_idle(size)
            return lambda: self._compute(inputs)

        self._recorded = RecordedDecodes(sizes, compute, recorder)

    def __call__(self, chunks: Sequence[Chunk], rows: Sequence[int], fed: Fed = NOT_FED) -> Hidden:
        """See ``Forward``."""
        token_ids, batch = build_batch(chunks, self._kv_cache.block_size)
        size = None
        if self._recorded is not None and len(token_ids) == len(chunks):
            size = self._recorded.size_for(len(chunks))
        inputs = self._inputs.load(token_ids, batch, rows, size, fed)
        if self._recorded is not None and size is not None:
            states = self._recorded.replay(size)
        else:
            states = self._compute(inputs)
        return Hidden(states, asked_of(states, rows, lambda: inputs.asked))

    def _compute(self, inputs: Inputs) -> Tensor:
        return self._model.forward(
            inputs.token_ids, inputs.batch, self._kv_cache.layers, self._kernels
        )
