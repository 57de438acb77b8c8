"""A checkpoint into the module that ``transformers`` has for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from quire.errors import ModelError
from quire.files import one_line
from quire.model.config import ModelConfig
from quire.model.weights import Weights


def check_decoder(architecture: str) -> None:
    """ModelError unless ``transformers`` has such a decoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise ModelError(
            f"{architecture} is not a decoder that transformers has for language modelling"
            + _instead(architecture)
        )


def _instead(architecture: str) -> str:
    """What to do with a model that is something else."""
    if architecture.endswith("ForSequenceClassification"):
        return (
            "; heads that classify are not computed. A reranker that says yes or no is served with "
            '--hf-overrides \'{"architectures": ["...ForCausalLM"], "classifier_from_token": '
            '["no", "yes"]}\''
        )
    if architecture.endswith(("Model", "ForMaskedLM")):
        return (
            "; encoders (BERT and the like) have no keys and values to keep, and are not served: "
            "embed with a decoder (Qwen3-Embedding, e5-mistral), or in sentence-transformers"
        )
    return ""


def load_causal_lm(
    config: ModelConfig,
    weights: Weights,
    dtype: torch.dtype | None,
    admit: Callable[[int], None],
) -> Any:
    """A decoder with its own, eager, attention, and its weights.

    admit: told the bytes that will be taken, to refuse them.

    Raises:
        ModelError: ``transformers`` has no such decoder or cannot load it, or the checkpoint has
            not the tensors that the config asks for.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_decoder(config.architecture)
    directory, auto = weights.directory, cast(Any, AutoModelForCausalLM)
    given = {"dtype": dtype or "auto", "attn_implementation": "eager", "trust_remote_code": False}
    try:
        known, unused = AutoConfig.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            return_unused_kwargs=True,
            **config.overrides,
        )
        if unused:
            names = ", ".join(map(str, unused))
            raise ModelError(f"hf_overrides: {config.architecture} has no field {names}")
        with torch.device("meta"):
            outline = auto.from_config(known, **given)
        _check_sizes(outline, config, weights)
        admit(sum(t.nbytes for t in (*outline.parameters(), *outline.buffers())))
        causal_lm, report = auto.from_pretrained(
            directory,
            config=known,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **given,
        )
    except ModelError:
        raise
    except Exception as error:  # whatever an architecture's code raises, it cannot be used
        raise ModelError(f"{directory}: transformers cannot load it: {one_line(error)}") from error
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[fault]:
            names = ", ".join(sorted(map(str, report[fault]))[:5])
            raise ModelError(f"{directory}: {fault.replace('_keys', ' tensors')}: {names}")
    return causal_lm.eval().requires_grad_(False)


def _check_sizes(outline: nn.Module, config: ModelConfig, weights: Weights) -> None:
    """ModelError where a config asks for much more than there is, before memory is taken for it.

    What differs by less is found when tensors are loaded.
    """
    asked = sum(parameter.numel() for parameter in outline.parameters())
    if asked > 2 * weights.num_elements:  # by up to twice where a tied head counts as its own
        raise ModelError(
            f"{config.fields.source} asks for {asked:,} parameters, but the checkpoint holds "
            f"{weights.num_elements:,}"
        )
