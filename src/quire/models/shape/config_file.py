"""A model's config.json, and what says how its weights are rounded, wherever savers put that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.models.files import read_object
from quire.models.shape.fields import ConfigFields, read_fields

CONFIG, ROUNDING = "config.json", "quantization_config"

# Where config.json says nothing of it: AutoGPTQ's and GPTQModel's, AutoAWQ's, ModelOpt's.
_BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
_EARLIER = "compression_config"  # what compressed-tensors called it


def config_files(directory: Path) -> list[Path]:
    """The files that describe a model, without those of its generation."""
    return [directory / name for name in (CONFIG, *_BESIDE) if (directory / name).exists()]


def read_config_file(path: Path, overrides: Mapping[str, Any] | None = None) -> ConfigFields:
    """The fields of a config.json, with ``quantization_config`` if weights are rounded.

    overrides: over its fields. ModelError: a file holds no JSON object.
    """
    fields = read_fields(path, overrides)
    if ROUNDING in fields or ROUNDING in (overrides or {}):
        return fields
    values = {name: value for name, value in fields.values.items() if name != _EARLIER}
    for where, inner in (
        (_EARLIER, fields.section(_EARLIER)),
        (f"text_config: {ROUNDING}", fields.section("text_config").section(ROUNDING)),
    ):
        if inner.values:
            named = {ROUNDING: f"{fields.source}: {where}"}
            return ConfigFields({**values, ROUNDING: inner.values}, fields.source, named)
    for name, method in _BESIDE.items():
        beside = path.with_name(name)
        if beside.exists():
            found = _said_by(ConfigFields(read_object(beside), str(beside)), method)
            if found:
                return ConfigFields(
                    {**values, ROUNDING: found}, fields.source, {ROUNDING: str(beside)}
                )
    return fields


def _said_by(file: ConfigFields, method: str) -> Mapping[str, Any]:
    """The description of rounding, in the form of ``quantization_config``; empty: there is none."""
    if method == "modelopt":
        inner = file.section("quantization")
        return {"quant_method": method, **inner.values} if "quant_algo" in inner else {}
    return {"quant_method": file.get("method", str, method), **file.values}
