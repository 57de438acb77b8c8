"""What a checkpoint says about itself: in JSON files as Hugging Face's, or in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError
from quire.models.gguf import config_of, is_gguf, open_gguf
from quire.models.shape.config_file import CONFIG, read_config_file
from quire.models.shape.families import find_family
from quire.models.shape.fields import ConfigFields, read_fields
from quire.models.shape.towers import decoder_of, is_with_images

SAMPLING_DEFAULTS = ("temperature", "top_p", "min_p", "repetition_penalty", "top_k")
"""The sampling parameters for which a model may have defaults of its own."""

_LONGEST_NAME = 100  # of a class
_DTYPES = ("float32", "float", "bfloat16", "float16", "half")  # of weights


@dataclass(frozen=True)
class Checkpoint:
    """The facts that all architectures share; the rest is in ``fields``."""

    architecture: str  # the class name in transformers, "LlamaForCausalLM"
    dtype: str | None  # of the weights, where it says so
    eos_token_ids: tuple[int, ...]
    fields: ConfigFields  # config.json, of the decoder alone
    with_images: bool = False  # it is in a model that sees images


def read_checkpoint(directory: Path, overrides: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read ``config.json``, and ``generation_config.json`` where there is one; or a GGUF file.

    overrides: over the fields of the former.

    Raises:
        ModelError: a file is missing or is not a JSON object, or the model is none that a decoder
            can run: encoder-decoder, or without ``architectures``.
    """
    if is_gguf(directory):
        fields = ConfigFields(
            {**config_of(open_gguf(directory)), **(overrides or {})}, str(directory)
        )
    elif directory.is_dir():
        fields = read_config_file(directory / CONFIG, overrides)
    else:
        raise ModelError(f"{directory} is not a directory")
    with_images = is_with_images(fields)
    fields = (decoder_of(fields) if with_images else None) or fields
    architectures = fields.get("architectures", list, [])
    if not architectures:
        raise ModelError(f"{fields.source}: architectures is missing, so the model is unknown")
    architecture = architectures[0]
    if not isinstance(architecture, str) or len(architecture) > _LONGEST_NAME:
        raise fields.wrong("architectures", "a list of names")
    if fields.get("is_encoder_decoder", bool, False):
        raise ModelError(f"{architecture} is an encoder-decoder model; only decoders are served")

    generation = ConfigFields({}, "")
    if (directory / "generation_config.json").exists():
        generation = read_fields(directory / "generation_config.json")
    return Checkpoint(
        architecture=_in_transformers(architecture, fields),
        dtype=_stored_dtype(fields),
        eos_token_ids=tuple(dict.fromkeys((*_eos_ids(fields), *_eos_ids(generation)))),
        fields=fields,
        with_images=with_images,
    )


def _in_transformers(architecture: str, fields: ConfigFields) -> str:
    """The family's own class, where its authors' has other capitals (PhiMoE), or where the class
    is named that computes it in transformers, which knows it by its type (EXAONE 3).
    """
    family = find_family(None, str(fields.values.get("model_type")))
    if family is None:
        return architecture
    same = family.architecture.casefold() == architecture.casefold()
    return family.architecture if same or architecture == family.computed_by else architecture


def sampling_defaults(directory: Path) -> dict[str, float | int]:
    """How the model's authors would have it sampled, by ``generation_config.json``.

    Raises:
        ModelError: the file is not a JSON object, or a field is not a number.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        return {}
    fields = read_fields(path)
    found: dict[str, float | int] = {}
    for name in SAMPLING_DEFAULTS:
        if name in fields:
            found[name] = fields.get(name, int if name == "top_k" else float)
    return found


def _stored_dtype(fields: ConfigFields) -> str | None:
    for one in (fields, fields.section("text_config")):
        for name in ("dtype", "torch_dtype"):  # transformers 5, and before
            if name in one and one.values[name] != "auto":
                return one.choice(name, _DTYPES)
    return None


def _eos_ids(fields: ConfigFields) -> list[int]:
    value = fields.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise fields.wrong("eos_token_id", "int or a list")
    return ids
