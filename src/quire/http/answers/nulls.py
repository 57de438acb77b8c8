"""Fields that vLLM's answers always have, as null where Quire has nothing to say in them.

Clients read them as attributes, which a field that is left out has none of. What OpenAI's own
schema allows no null for is left out instead.
"""

from __future__ import annotations

from typing import Any

_TRANSFER = ("kv_transfer_params", "ec_transfer_params")


def _nulls(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names)


COMPLETION = _nulls("service_tier", *_TRANSFER, "metrics")
COMPLETION_CHOICE = _nulls("token_ids", "prompt_token_ids", "prompt_logprobs", "routed_experts")
CHAT = {**COMPLETION, **_nulls("prompt_logprobs", "prompt_token_ids", "prompt_text")}
CHAT_CHOICE = _nulls("token_ids", "routed_experts")
MESSAGE = _nulls("refusal", "audio", "reasoning", "reasoning_content")
RESPONSE = _nulls("prompt", "input_messages", "output_messages", *_TRANSFER)


def without_nulls(value: dict[str, Any], *names: str) -> dict[str, Any]:
    """Without those of ``names`` that are null, which OpenAI's schema does not allow."""
    return {name: item for name, item in value.items() if item is not None or name not in names}
