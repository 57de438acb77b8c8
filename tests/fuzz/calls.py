"""Lists of tools, what is said of them and of the answer, and the dialect of the model."""

from __future__ import annotations

from typing import Any

from fuzz.draws import Draws
from fuzz.schemas import object_schema, schema
from fuzz.texts import name, value, word
from quire.text.dialect import DIALECTS, REASONING

_DIALECTS, _REASONING = list(DIALECTS), list(REASONING)


def tools(draws: Draws) -> dict[str, Any]:
    """A turn with tools, as the doors of chats hand it on."""
    offered = [_tool(draws, number) for number in draws.several(24 if not draws.oddly() else 520)]
    choice: Any = draws.pick(("required", "auto", "none"))
    if draws.one_in(3):
        choice = draws.pick(offered)["name"] if not draws.oddly() else word(draws)
    found = {
        "dialect": draws.pick(_DIALECTS),
        "tools": offered,
        "tool_choice": choice,
        "several": draws.one_in(2),
        "begun": draws.pick(("", "", "", "<think>", "<think>a</think>", "{", "<tool_call>", "[f(")),
    }
    if draws.one_in(2):
        found["reasoning"] = draws.pick(_REASONING)
    found["said"] = _said(draws, found["dialect"], offered[0]["name"])
    if draws.one_in(4):
        found["schema"] = schema(draws)
    if draws.one_in(6):
        found["thinking"] = draws.size(100)
    return found


def _said(draws: Draws, dialect: str, called: str) -> list[str]:
    """What a model may write, piece by piece: its marks, and what looks like a call."""
    marks = [
        *DIALECTS[dialect].marks,
        "<think>",
        "</think>",
        "[THINK]",
        "<function=",
        "</function>",
    ]
    calls = (
        f'{{"name": "{called}", "arguments": {{}}}}',
        f"[{called}(a=1)]",
        f"{called}\n",
        called,
    )
    plain = (
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ": ",
        ", ",
        "1",
        "\n",
        "a",
        "(",
        ")",
        "```json\n",
        "\\u12",
    )
    pieces = [draws.pick((marks, calls, plain)) for _ in range(draws.size(200))]
    said = [draws.pick(one) for one in pieces]
    return said * (1 + draws.size(2_000)) if draws.one_in(20) else said


def _tool(draws: Draws, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{name(draws)}{number}", "strict": draws.one_in(2)}
    if draws.oddly():
        found["name"] = word(draws)
    if not draws.one_in(6):
        found["parameters"] = object_schema(draws)
    if draws.oddly():
        found["parameters"] = {"type": "object", "properties": value(draws), "required": ["a"]}
    return found
