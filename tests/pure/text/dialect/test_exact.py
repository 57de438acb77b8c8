"""What a tool's schema says is kept to letter by letter and digit by digit, in all forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.text.dialect import DIALECTS
from quire.text.dialect.grammar import GrammarRules, Wanted
from quire.text.dialect.notation import Notation
from support.grammars import allows, backend, compiled, tokens_of

ID, LEAST = 1234567890123456789, -(2**63)
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "enum": [ID]},
        "at": {"type": "integer", "minimum": LEAST, "maximum": 2**63 - 1},
    },
    "required": ["id", "at"],
    "additionalProperties": False,
}
CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"id": %d, "at": %d}}\n</tool_call>',
    "pythonic": "[f(id=%d, at=%d)]",
    "llama3_json": '{"name": "f", "parameters": {"id": %d, "at": %d}}',
}


def spell(text: str) -> str:
    return json.dumps(text)


@pytest.mark.parametrize("name", CALLS)
def test_whole_numbers_of_tools_are_exact(name: str) -> None:
    writing = DIALECTS[name].writing
    assert writing is not None
    rules = compiled(grammar=writing.grammar(Wanted({"f": SCHEMA}, spell, several=False)))
    call = CALLS[name]
    assert allows(rules, call % (ID, LEAST)) and allows(rules, call % (ID, 2**63 - 1))
    for wrong in ((ID - 21, 0), (ID + 1, 0), (ID, LEAST - 1), (ID, 2**63)):
        assert not allows(rules, call % wrong)


def test_numbers_that_are_none_are_refused() -> None:
    writing = DIALECTS["hermes"].writing
    assert writing is not None
    schema = {"properties": {"a": {"maximum": float("inf")}}}
    with pytest.raises(RequestError, match="finite") as caught:
        writing.grammar(Wanted({"f": schema}, spell, several=False))
    assert caught.value.field == "tools"


@pytest.mark.parametrize("quoted", [True, False])
def test_a_tool_s_texts_are_no_marks_where_marks_are_tokens(quoted: bool) -> None:
    """Here the quotes are a token, and so is what one of the values looks like."""
    quote = backend().token_to_id("<|user|>")

    def marked(text: str) -> str:
        parts = [f"<[{quote}]>" if one == "<|user|>" else spell(one) for one in split(text)]
        return " ".join(parts)

    notation = Notation("<|user|>", "<|user|>", quoted, ("<|assistant|>",))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"enum": ["<|end|>", {"x": ["a", 5]}, ID]}},
        "required": ["x"],
    }
    rules = GrammarRules(marked, "<[*]>")
    start = notation.arguments(rules, schema)
    made = compiled(grammar="\n".join([f"start: {start}", *rules.lines]))

    def takes(*parts: str | int) -> bool:
        tokens: list[int] = []
        for part in parts:
            tokens += [part] if isinstance(part, int) else tokens_of(part)
        assert made.text is not None
        matcher = made.text.deep_copy()
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    key = (quote, "x", quote) if quoted else ("x",)
    end = backend().token_to_id("<|end|>")
    assert takes("{", *key, ":", quote, "<|end|>", quote, "}")
    assert not takes("{", *key, ":", quote, end, quote, "}")
    assert takes("{", *key, ":", "{", *key, ":[", quote, "a", quote, ",5]}", "}")
    assert takes("{", *key, f":{ID}" + "}") and not takes("{", *key, f":{ID - 21}" + "}")


def split(text: str) -> list[str]:
    head, mark, tail = text.partition("<|user|>")
    return [one for one in (head, mark, *(split(tail) if tail else ())) if one]
