"""Fields that Quire does not have: one policy for all doors.

A field that asks for nothing passes in silence. One that says nothing about the text is left out,
counted, and told in the answer's ``warnings``; with ``--strict-fields`` it is refused, as all
others are, by name, with the reason or with the nearest field that there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError

from quire.core.errors import cut

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
    "mcp_servers": ([],),
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

_LONGEST, _ALIKE = 64, 0.75
_MOST = 32  # fields that are left out of one body, by their names

# What clients note for themselves and for others, or have got from elsewhere and give back.
NOTES = frozenset({
    "annotations", "cache_control", "caller", "citations", "client_info", "client_metadata",
    "conversation_id", "created", "createdAt", "created_at", "diagnostics",
    "experimental_providerMetadata", "extra_content", "generation_name", "id", "litellm_call_id",
    "litellm_metadata", "litellm_session_id", "litellm_trace_id", "parent_id", "parsed",
    "parsed_output", "providerMetadata", "providerOptions", "provider_options",
    "provider_specific_fields", "reasoning_details", "run_id", "session_id", "signature", "tags",
    "telemetry", "thinking_blocks", "thought_signature", "timestamp",
    "trace", "trace_id", "trace_name", "updated_at", "usage", "user_id",
})  # fmt: skip

_TEXT_ONLY = "texts come in and go out, nothing else"
_OTHERS_CODE = "no code of a request's is run"
_REASONS: Mapping[str, str] = {
    "audio": _TEXT_ONLY,
    "container": "nothing is run here for a request",
    "detokenize": "an answer has its text; return_token_ids: true adds the tokens",
    "function_call": "the older form of tool_choice",
    "functions": "the older form of tools",
    "include_obfuscation": "chunks are as long as they are",
    "kv_transfer_params": "completions and chats hand it over, in OpenAI's words",
    "logits_processors": _OTHERS_CODE,
    "mcp_servers": "a model here reaches no network",
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


def passing_schemas(*, strict: bool) -> dict[str, dict[str, Any]]:
    """Fields that pass in all bodies, and the JSON schemas of what passes in them."""
    kinds = {dict: "object", str: "string", bool: "boolean"}
    hints = {name: {"type": [kinds[kind], "null"]} for name, kind in _HINTS.items()}
    neutral = {name: {"enum": [*values, None]} for name, values in _NEUTRAL.items()}
    notes: dict[str, dict[str, Any]] = {} if strict else {name: {} for name in sorted(NOTES)}
    return {**notes, **hints, **neutral}


def as_patterns(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """``patternProperties``: fields that pass, though nobody need know that there are such."""
    return {f"^{name}$": schema for name, schema in schemas.items()}


@dataclass
class Passed:
    """What was left out of one body.

    strict: nothing is. beta: the request has an ``anthropic-beta`` header: what it brings is not
    known here. warnings: by the names of fields.
    """

    strict: bool = False
    beta: bool = False
    warnings: dict[str, str] = field(default_factory=dict)

    def leaves_out(self, name: str, known: Collection[str]) -> bool:
        """Whether a field passes that this object does not have."""
        if name in self.warnings:
            return True
        if len(self.warnings) == _MOST:
            return False
        if name in NOTES:
            why = "it says nothing about the text"
        elif self.beta and name not in _REASONS and not _nearest(name, known):
            why = "it is of a beta that Quire does not know"
        else:
            return False
        return self.leave_out(name, why)

    def leave_out(self, name: str, why: str, what: str = "field") -> bool:
        """Leave a field out, or what else has such a name, unless nothing is; whether it is."""
        if not self.strict:
            self.warnings[name] = f"the {what} {cut(name)} was left out: {why}"
        return not self.strict


def unknown(name: str, known: Collection[str]) -> PydanticCustomError:
    """The complaint about such a field."""
    context = {"field": name, "nearest": _nearest(name, known)}
    return PydanticCustomError("unknown", "is not supported", context)


def _nearest(name: str, known: Collection[str]) -> str:
    """The field that is spelled most like it; "": none is."""
    close = difflib.get_close_matches(name[:_LONGEST], sorted(known), n=1, cutoff=_ALIKE)
    return close[0] if close else ""


def why_not(path: str, nearest: str = "") -> str:
    """The message about a field that is not understood."""
    name = path.rpartition(".")[2]
    if name in _HINTS:
        what = {dict: "an object", str: "a string", bool: "true or false"}[_HINTS[name]]
        return f"{path} must be {what}"
    reason = _REASONS.get(name)
    if reason is None and nearest:
        return f"field {path} is not supported by Quire; did you mean {nearest}?"
    return f"field {path} is not supported by Quire" + (f": {reason}" if reason else "")
