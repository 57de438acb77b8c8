"""Dense modules of sentence-transformers: what a pooled state passes to become a vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from quire.core.errors import ModelError
from quire.models.shape import read_fields
from quire.models.weights import Weights

# By the last part of the names that PyTorch has for them.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}
_STATE = "sentence_embedding"  # what is read and written, by sentence-transformers' name


class Dense(NamedTuple):
    """A linear layer and an activation. weight [d', d] and bias [d'] are float64."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        """Numbers of what it gives."""
        return len(self.weight)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, state: Tensor) -> Tensor:
        """[d] float64 -> [d']."""
        vector = self.weight @ state
        return self.activation(vector if self.bias is None else vector + self.bias)


def read_dense(directory: Path, width: int, admit: Callable[[int], None]) -> Dense:
    """The module in ``directory``, for states of ``width`` numbers.

    admit: called with the bytes that will be taken, to refuse them.

    Raises:
        ModelError: it is for other states, has an unknown activation, or its weights are missing.
    """
    fields = read_fields(directory / "config.json")
    if fields.positive("in_features") != width:
        raise fields.wrong("in_features", f"{width}, the numbers of what it is given")
    for name in ("module_input_name", "module_output_name"):
        if fields.get(name, str, _STATE) != _STATE:
            raise fields.wrong(name, _STATE)
    path, _, kind = fields.get("activation_function", str, "torch.nn.Tanh").rpartition(".")
    if kind not in _ACTIVATIONS or not f"{path}.".startswith("torch.nn."):
        raise fields.wrong("activation_function", f"of torch.nn {' or '.join(_ACTIVATIONS)}")
    if not (directory / "model.safetensors").exists():
        raise ModelError(
            f"{directory} has no model.safetensors; pytorch_model.bin is not read, since loading "
            "it runs code: save the model anew, as sentence-transformers does by now"
        )
    out = fields.positive("out_features")
    weights = Weights(directory, torch.float64)
    weights.check("linear.weight", out, width)
    admit(out * (width + 1) * torch.float64.itemsize)
    bias = weights.take("linear.bias", out) if fields.get("bias", bool, True) else None
    dense = Dense(weights.take("linear.weight", out, width), bias, _ACTIVATIONS[kind])
    weights.finish()
    return dense
