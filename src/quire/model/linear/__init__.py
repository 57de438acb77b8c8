"""Projections: x times a weight, in one of several forms of the weight."""

from quire.model.linear.base import Joined, Linear, PlainLinear
from quire.model.linear.reader import LinearReader, NamedPart, NamedParts, Stack
from quire.model.linear.rounding import Quantization

__all__ = [
    "Joined",
    "Linear",
    "LinearReader",
    "NamedPart",
    "NamedParts",
    "PlainLinear",
    "Quantization",
    "Stack",
]
