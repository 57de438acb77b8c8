"""Models that GGUF files hold, one record for each, and how their tensors differ there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Architecture:
    """``general.architecture``, and what transformers calls it."""

    name: str
    model_type: str
    class_name: str
    # Rows of queries and keys are in the order in which neighbours are rotated with each other.
    interleaved: bool = False
    # Tensors of a layer that its family calls otherwise than Llama's.
    names: Mapping[str, str] = field(default_factory=dict)


ARCHITECTURES = {
    record.name: record
    for record in (
        Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True),
        Architecture("qwen2", "qwen2", "Qwen2ForCausalLM"),
        Architecture("qwen3", "qwen3", "Qwen3ForCausalLM"),
        Architecture("phi3", "phi3", "Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}),
    )
}
