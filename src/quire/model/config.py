"""What a checkpoint says about itself, read from its JSON files as Hugging Face writes them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

import torch

from quire.errors import ModelError
from quire.files import read_object

_T = TypeVar("_T")

_LONGEST_NAME = 100  # of a class
_MOST = 2**31 - 1  # of anything that is counted; no tensor has more rows, no text more tokens

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


class Fields:
    """A JSON object whose fields are asked for by type, with errors that name file and field."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        """The field, or ``default`` where it is absent or null.

        Raises:
            ModelError: the field is of another type, or is absent and has no default.
        """
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise ModelError(f"{self.source}: {name} is missing")
            return default
        if kind is float and type(value) is int and abs(value) <= _MOST:
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.wrong(name, kind.__name__)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(name, "finite")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.get(name, int, default)
        if value < 1:
            raise self.wrong(name, "at least 1", value)
        if value > _MOST:
            raise self.wrong(name, f"at most {_MOST:,}")
        return value

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of the ``allowed`` names."""
        value = self.get(name, str, default)
        if value not in allowed:
            names = ", ".join(sorted(allowed))
            raise ModelError(f"{self.source}: {name} is {short(value)}; supported: {names}")
        return value

    def wrong(self, name: str, wanted: str, value: object = None) -> ModelError:
        """The error for a field that is not as it must be, or a ``value`` in its place."""
        found = self.values.get(name) if value is None else value
        return ModelError(f"{self.source}: {name} must be {wanted}, but is {short(found)}")

    def section(self, name: str) -> Fields:
        """A nested object; empty where it is absent or null."""
        return Fields(self.get(name, dict, {}), f"{self.source}: {name}")


@dataclass(frozen=True)
class ModelConfig:
    """What every architecture shares; the families read the rest from ``fields``."""

    architecture: str  # the class name in transformers, "LlamaForCausalLM"
    dtype: torch.dtype | None  # of the checkpoint, where it says so
    eos_token_ids: tuple[int, ...]
    fields: Fields  # config.json


def read_config(directory: Path) -> ModelConfig:
    """Read ``config.json``, and ``generation_config.json`` where there is one.

    Raises:
        ModelError: a file is missing or is not a JSON object, or the model is none that a decoder
            can run: encoder-decoder, or without ``architectures``.
    """
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory")
    fields = _read(directory / "config.json")
    architectures = fields.get("architectures", list, [])
    if not architectures:
        raise ModelError(f"{fields.source}: architectures is missing, so the model is unknown")
    architecture = architectures[0]
    if not isinstance(architecture, str) or len(architecture) > _LONGEST_NAME:
        raise fields.wrong("architectures", "a list of names")
    if fields.get("is_encoder_decoder", bool, False):
        raise ModelError(f"{architecture} is an encoder-decoder model; only decoders are served")

    generation = Fields({}, "")
    if (directory / "generation_config.json").exists():
        generation = _read(directory / "generation_config.json")
    return ModelConfig(
        architecture=architecture,
        dtype=_stored_dtype(fields),
        eos_token_ids=tuple(dict.fromkeys((*_eos_ids(fields), *_eos_ids(generation)))),
        fields=fields,
    )


def sampling_defaults(directory: Path) -> dict[str, float | int]:
    """How the model's authors would have it sampled, by ``generation_config.json``.

    Raises:
        ModelError: the file is not a JSON object, or a field is not a number.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        return {}
    fields = _read(path)
    found: dict[str, float | int] = {}
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if name in fields:
            found[name] = fields.get(name, float)
    if "top_k" in fields:
        found["top_k"] = fields.get("top_k", int)
    return found


def _read(path: Path) -> Fields:
    return Fields(read_object(path), str(path))


def _stored_dtype(fields: Fields) -> torch.dtype | None:
    for name in ("dtype", "torch_dtype"):  # transformers 5, and before
        if name in fields:
            return DTYPES[fields.choice(name, DTYPES)]
    return None


def _eos_ids(fields: Fields) -> list[int]:
    value = fields.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise fields.wrong("eos_token_id", "int or a list")
    return ids
