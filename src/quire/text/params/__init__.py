"""What callers ask of texts: declared with default, help and range, checked by name."""

from quire.text.params.pooling import Pooling, PoolingParams, pooling_params_of
from quire.text.params.sampling_params import SamplingParams, params_of
from quire.text.params.structured_outputs import Reasoning, StructuredOutputs

__all__ = [
    "Pooling",
    "PoolingParams",
    "Reasoning",
    "SamplingParams",
    "StructuredOutputs",
    "params_of",
    "pooling_params_of",
]
