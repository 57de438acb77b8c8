"""Structured text over HTTP: what is refused, and by which name."""

from __future__ import annotations

from typing import Any

import pytest

from support.live_server import LiveServer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMED = {"name": "place", "schema": SCHEMA, "strict": True}


TAG = {"begin": "<a>", "schema": SCHEMA, "end": "</a>"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
        "response_format.json_schema.schema",
        "dictionary",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {**NAMED, "schema": {"not": {"pattern": "a"}}},
            }
        },
        "response_format",
        "not",
    ),
    ({"guided_regex": "("}, "guided_regex", "unclosed"),
    ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_regex", "one of"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.'xml'", "not supported"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "1 to"),
    ({"structured_outputs": {"regex": "a" * 300_000}}, "structured_outputs", "characters"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "response_format",
        "give one",
    ),
    (
        {"response_format": {"type": "structural_tag", "structures": [TAG], "triggers": ["<b"]}},
        "response_format",
        "trigger",
    ),
    ({"thinking_token_budget": -1}, "thinking_token_budget", "from 0"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_what_is_wrong_is_told_by_the_callers_name(
    shared: LiveServer, fields: dict[str, Any], param: str, words: str
) -> None:
    refused = shared.complete(prompt="Hi", max_tokens=5, **fields)
    error = refused.json()["error"]
    assert refused.status_code == 400, refused.text
    assert error["param"] == param and words in error["message"], error
