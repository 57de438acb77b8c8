"""In which form weights are kept: what one takes, part by part of a model.

What others have rounded is kept as Quire keeps it where Quire reads it (``stored``). Formats that
it does not read are planned as they are stored, for the engines that do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import ConfigError
from quire.models.shape.fields import ConfigFields
from quire.models.shape.stored import read_stored

_GROUP_SCALE = 2 / 32  # bytes of a weight's share in a scale, where 32 inputs have one
_BYTE = 1 + 2 / 64  # int8, where 64 have one
_MXFP4 = 0.5 + 1 / 32  # OCP Microscaling formats 1.0: 4 bits, and 8 for 32 of them
_NVFP4 = 0.5 + 1 / 16

ROUNDINGS = ("int8", "int4", "w8a8", "w4a8", "fp8")
"""By which weights may be planned: the engine's own, and fp8, which other engines keep."""


@dataclass(frozen=True)
class WeightForm:
    """Bytes of a weight in attention, in MLPs, in experts, and in the head.

    name: for people. products: of which type they are, where activations are rounded too: int8 or
        fp8; "": of the model's own.
    as_stored: Quire does not keep weights so, other engines do.
    """

    name: str
    attention: float
    mlp: float
    experts: float
    head: float
    products: str = ""
    as_stored: bool = False


def plain_form(dtype: str, size: float) -> WeightForm:
    """All weights in a type of ``size`` bytes."""
    return WeightForm(dtype, size, size, size, size)


def rounded_form(name: str, plain: WeightForm) -> WeightForm:
    """The form of weights with ``--quantization``. ConfigError: there is no such form."""
    products = "int8" if name in ("w8a8", "w4a8") else ""
    if name in ("int4", "w4a8"):  # attention has 6 bits, and the head 8
        small = 0.5 + _GROUP_SCALE
        return WeightForm(name, 0.75 + _GROUP_SCALE, small, small, _BYTE, products)
    if name in ("int8", "w8a8"):
        return WeightForm(name, _BYTE, _BYTE, _BYTE, _BYTE, products)
    if name == "fp8":  # vLLM leaves the head as it is
        return WeightForm(name, 1, 1, 1, plain.head, "fp8", as_stored=True)
    raise ConfigError(f"quantization must be one of {', '.join(ROUNDINGS)}; got {name!r}")


def stored_form(section: ConfigFields, plain: WeightForm) -> WeightForm:
    """The form of weights by ``quantization_config``. ModelError: their size is unknown."""
    method = section.values.get("quant_method")
    if method == "mxfp4":  # gpt-oss: experts alone
        return replace(plain, name="mxfp4", experts=_MXFP4, as_stored=True)
    if method == "modelopt" and section.values.get("quant_algo") == "NVFP4":
        return WeightForm("nvfp4", _NVFP4, _NVFP4, _NVFP4, plain.head, as_stored=True)
    stored = read_stored(section)
    size = stored.scheme.bytes_kept(int(plain.head))
    products = "int8" if stored.scheme.rounds_rows else ""
    name = stored.method if size < plain.mlp else f"{plain.name}, from {stored.method}"
    return WeightForm(name, size, size, size, plain.head, products)
