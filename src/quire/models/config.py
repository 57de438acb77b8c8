"""What a checkpoint says about itself, with its dtype as torch has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire.models.shape import ConfigFields, read_checkpoint, sampling_defaults

__all__ = ["DTYPES", "ConfigFields", "ModelConfig", "read_config", "sampling_defaults"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


@dataclass(frozen=True)
class ModelConfig:
    """The facts that all architectures share; families read the rest from ``fields``."""

    architecture: str  # the class name in transformers, "LlamaForCausalLM"
    dtype: torch.dtype | None  # of the checkpoint, where it says so
    eos_token_ids: tuple[int, ...]
    fields: ConfigFields  # config.json, with the overrides
    overrides: Mapping[str, Any]
    with_images: bool = False  # it is in a model that sees images
    has_head: bool = True  # false: what is stored makes states of tokens, and no tokens of states


def read_config(directory: Path, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of the model in ``directory``. ModelError: see ``read_checkpoint``."""
    found = read_checkpoint(directory, overrides)
    dtype = None if found.dtype is None else DTYPES[found.dtype]
    ends, images = found.eos_token_ids, found.with_images
    return ModelConfig(found.architecture, dtype, ends, found.fields, overrides or {}, images)
