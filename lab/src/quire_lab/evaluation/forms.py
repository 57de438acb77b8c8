"""The forms of a model: how its weights are rounded, and its keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.settings import QUANTIZATIONS

_DTYPES = ("float32", "bfloat16", "float16")
_KV_TYPES = ("float32", "bfloat16", "float16", "int8", "int4", "fp8")
_OWN = "own"


class ModelForm(NamedTuple):
    """Of weights, activations and the KV cache. dtype auto, no quantization: as the files say."""

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    @property
    def name(self) -> str:
        """As ``parse_forms`` reads it."""
        weights = self.quantization or (_OWN if self.dtype == "auto" else self.dtype)
        return weights + ("" if self.kv_cache_dtype == "auto" else f"/{self.kv_cache_dtype}")

    @property
    def flags(self) -> str:
        """What ``quire serve`` is to be given for it."""
        flags = [] if self.dtype == "auto" else [f"--dtype {self.dtype}"]
        if self.quantization is not None:
            flags.append(f"--quantization {self.quantization}")
        if self.kv_cache_dtype != "auto":
            flags.append(f"--kv-cache-dtype {self.kv_cache_dtype}")
        return " ".join(flags) or "no flag"


REFERENCE = ModelForm("float32", None, "float32")
"""What all others are compared with: the files' weights, and nothing rounded on the way."""

USUAL = (
    ModelForm(),
    ModelForm(kv_cache_dtype="int8"),
    ModelForm(kv_cache_dtype="int4"),
    *(ModelForm(quantization=rounding) for rounding in QUANTIZATIONS),
)


def parse_forms(names: Sequence[str]) -> list[ModelForm]:
    """``WEIGHTS`` or ``WEIGHTS/KV`` each, such as ``own``, ``w8a8`` and ``bfloat16/int8``."""
    forms = []
    for name in names:
        weights, slash, kv = name.partition("/")
        if weights in QUANTIZATIONS:
            form = ModelForm(quantization=weights)
        elif weights in _DTYPES:
            form = ModelForm(weights)
        elif weights == _OWN:
            form = ModelForm()
        else:
            raise ConfigError(
                f"forms: {name!r} is none: its weights must be one of "
                f"{', '.join((_OWN, *_DTYPES, *QUANTIZATIONS))}"
            )
        if slash and kv not in _KV_TYPES:
            raise ConfigError(
                f"forms: {name!r} is none: its KV cache must be one of {', '.join(_KV_TYPES)}"
            )
        forms.append(form._replace(kv_cache_dtype=kv or "auto"))
    return forms
