"""Fields of others' APIs that Quire does not have: which pass, and why the rest is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By OpenAI's word they change nothing about the text; only their type is looked at.
_HINTS: Mapping[str, type] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
}

# Values by which a client asks for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "cache_prompt": (True,),
    "detokenize": (True,),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "include_obfuscation": (False,),
    "kv_transfer_params": ({},),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_audio_in_video": (False,),
    "vllm_xargs": ({},),
}

_TEXT_ONLY = "texts come in and go out, nothing else"
_OTHERS_CODE = "no code of a request's is run"
_REASONS: Mapping[str, str] = {
    "audio": _TEXT_ONLY,
    "detokenize": "an answer has its text; return_token_ids: true adds the tokens",
    "function_call": "the older form of tool_choice",
    "functions": "the older form of tools",
    "include_obfuscation": "chunks are as long as they are",
    "kv_transfer_params": "completions and chats hand it over, in OpenAI's words",
    "logits_processors": _OTHERS_CODE,
    "media_io_kwargs": _TEXT_ONLY,
    "mm_processor_kwargs": _TEXT_ONLY,
    "modalities": _TEXT_ONLY,
    "spaces_between_special_tokens": "the tokenizer decides",
    "vllm_xargs": _OTHERS_CODE,
    "web_search_options": "a model here reaches no network",
}


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether such a field changes nothing with this value."""
    kind = _HINTS.get(name)
    return isinstance(value, kind) if kind else value in _NEUTRAL.get(name, ())


def passing_schemas() -> dict[str, dict[str, Any]]:
    """Such fields, and the JSON schemas of what passes in them."""
    kinds = {dict: "object", str: "string", bool: "boolean"}
    hints = {name: {"type": [kinds[kind], "null"]} for name, kind in _HINTS.items()}
    return {**hints, **{name: {"enum": [*values, None]} for name, values in _NEUTRAL.items()}}


def as_patterns(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """``patternProperties``: fields that pass, though nobody need know that there are such."""
    return {f"^{name}$": schema for name, schema in schemas.items()}


def why_not(path: str) -> str:
    """What to tell of a field that is not understood."""
    name = path.rpartition(".")[2]
    if name in _HINTS:
        what = {dict: "an object", str: "a string", bool: "true or false"}[_HINTS[name]]
        return f"{path} must be {what}"
    reason = _REASONS.get(name)
    return f"field {path} is not supported by Quire" + (f": {reason}" if reason else "")
