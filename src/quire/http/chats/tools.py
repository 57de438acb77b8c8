"""The tools that a caller offers, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.core.errors import RequestError, shown

MOST_TOOLS = 512
LONGEST_NAME = 64
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True)
class Tool:
    """A function of the caller's.

    parameters: the JSON schema of its arguments; None: any.
    strict: its arguments must follow the schema.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def for_template(self) -> Mapping[str, Any]:
        """As chat templates expect it: OpenAI's form."""
        told = {"description": self.description, "parameters": self.parameters}
        given = {key: value for key, value in told.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **given}}


@dataclass(frozen=True)
class ToolChoice:
    """What the model may do with tools.

    mode: "required" is one call at least.
    names: of the tools that count; None: all.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        """This tool must be called."""
        return cls("required", (name,))


AUTO = ToolChoice()


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """RequestError where the tools, or what is said of them, cannot be."""
    if len(tools) > MOST_TOOLS:
        raise RequestError(f"tools may hold at most {MOST_TOOLS} tools, got {len(tools)}", "tools")
    names = set()
    for number, tool in enumerate(tools):
        field = f"tools[{number}].function.name"
        if not _NAME.fullmatch(tool.name):
            raise RequestError(
                f"{field} must be 1 to {LONGEST_NAME} letters, digits, _ and -, got "
                f"{shown(tool.name)}",
                field,
            )
        if tool.name in names:
            raise RequestError(f"{field}: there are two tools named {tool.name}", field)
        names.add(tool.name)
        _check_schema(f"tools[{number}].function.parameters", tool.parameters or {})
    if choice.mode == "required" and not tools:
        raise RequestError("tool_choice needs tools to choose from", "tool_choice")
    for name in choice.names or ():
        if name not in names:
            raise RequestError(f"tool_choice names {shown(name)}, which is no tool", "tool_choice")


def _check_schema(field: str, schema: Mapping[str, Any]) -> None:
    """As far as others than the grammar rely on it."""
    if schema.get("type", "object") != "object":
        raise RequestError(f"{field} must be the schema of an object", field)
    if not isinstance(schema.get("properties", {}), dict):
        raise RequestError(f"{field}.properties must be an object", f"{field}.properties")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise RequestError(f"{field}.required must be a list of texts", f"{field}.required")
