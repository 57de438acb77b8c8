"""What ``transformers`` computes, as the reference."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.small_models import VOCAB_SIZE, register_decoders


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def hf_model(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Where long texts are served, texts of any length are turned as those are (longrope)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    register_decoders()
    config = AutoConfig.from_pretrained(directory)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        rope["short_factor"] = rope["long_factor"]
    return AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=dtype, attn_implementation="eager"
    ).eval()


def hf_logits(directory: Path, prompt: list[int]) -> Tensor:
    """[len(prompt), vocab]."""
    # A model of its own for each prompt: transformers' dynamic rotation remembers the longest one.
    with torch.inference_mode():
        logits: Tensor = hf_model(directory)(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


def hf_greedy(directory: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens with a key-value cache: the prompt in one pass, then a token at a time."""
    model, cache, new = hf_model(directory), None, prompt
    # Since 5.24.
    known = signature(model.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    output: list[int] = []
    with torch.inference_mode():
        for _ in range(count):
            more: dict[str, Any] = {name: cache}
            if "position_ids" in known:  # some of its models count from 0 again otherwise
                first = len(prompt) + len(output) - len(new)
                more["position_ids"] = torch.arange(first, first + len(new))[None]
            step = model(torch.tensor([new]), **more, use_cache=True)
            cache, new = step[name], [int(step.logits[0, -1].argmax())]
            output += new
    return output
