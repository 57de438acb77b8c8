"""Checkpoints whose weights are quantised already, a file for each format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.models.linear.checkpoints.awq import AWQ
from quire.models.linear.checkpoints.base import RoundedProjections
from quire.models.linear.checkpoints.bitsandbytes import BitsAndBytes
from quire.models.linear.checkpoints.compressed_tensors import CompressedTensors
from quire.models.linear.checkpoints.fp8 import FP8
from quire.models.linear.checkpoints.gguf import GGUF
from quire.models.linear.checkpoints.gptq import GPTQ
from quire.models.linear.checkpoints.mxfp4 import MXFP4
from quire.models.shape import ConfigFields, StoredWeights, read_stored
from quire.models.weights import Weights

__all__ = ["GGUF", "RoundedProjections", "read_checkpoint"]

_FORMATS: Mapping[str, Callable[[Weights, StoredWeights], RoundedProjections]] = {
    "awq": AWQ,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fp8": FP8,
    "gptq": GPTQ,
    "mxfp4": MXFP4,
}


def read_checkpoint(section: ConfigFields, weights: Weights) -> RoundedProjections:
    """The reader for config.json's ``quantization_config``.

    Raises:
        ModelError: the method, or a variant of it, is not supported.
    """
    stored = read_stored(section)
    return _FORMATS[stored.method](weights, stored)
