"""Projections: x times a weight, in one of several forms of the weight."""

from quire.models.linear.base import Joined, Linear, PlainLinear, WatchedLinear
from quire.models.linear.packed import pack
from quire.models.linear.reader import Given, LinearReader, NamedPart, NamedParts, Stack
from quire.models.linear.rounding import Multiplied, Quantization

__all__ = [
    "Given",
    "Joined",
    "Linear",
    "LinearReader",
    "Multiplied",
    "NamedPart",
    "NamedParts",
    "PlainLinear",
    "Quantization",
    "Stack",
    "WatchedLinear",
    "pack",
]
