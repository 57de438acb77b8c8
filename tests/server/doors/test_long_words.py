"""Words of 20,000 characters, deep within bodies and outside of them: no refusal repeats them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import MODEL, LiveServer

LONG = "é" * 20_000  # as JSON six times as many
CHAT = [{"role": "user", "content": "x"}]
SCHEMAS: list[Any] = [
    {"$ref": f"#/$defs/{LONG}"},
    {"$ref": LONG},
    {LONG: 1},
    {"type": LONG},
    {"type": "string", "format": LONG},
    {"type": "string", "pattern": f"({LONG}"},
    {"properties": {LONG: {"type": 5}}},
    {"properties": {"a": {LONG: 5}}},
    {"$defs": {LONG: {"type": 5}}, "$ref": f"#/$defs/{LONG}"},
    {"patternProperties": {f"({LONG}": {}}},
    {"enum": [LONG], "type": "integer"},
    {"required": [LONG], "additionalProperties": False, "type": "object"},
    {"anyOf": [{"properties": {LONG: {"type": 5}}}]},
]
GRAMMARS = [
    LONG,
    f"start: {LONG}",
    f"start: a{LONG}\n",
    f"root ::= {LONG}",
]
GRAMMARS += [f"start: %json {{{LONG}", f'start: %json {{"a": "{LONG}"}}', f"start: <{LONG}>"]
TAGS: list[Any] = [{"type": LONG}, {"type": "structural_tag", LONG: 1},
                   {"type": "structural_tag", "format": {"type": "tag", "begin": LONG, LONG: 1}},
                   {"type": "structural_tag", "format": {"type": "json_schema",
                    "json_schema": {"properties": {LONG: {"type": 5}}}}}]  # fmt: skip
STRUCTURED = [{LONG: 1}, *({"json": one} for one in SCHEMAS), *({"grammar": g} for g in GRAMMARS)]
STRUCTURED += [{"regex": f"({LONG}"}, {"structural_tag": LONG}, {"choice": [LONG, ""]}]


def function(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def within(name: str, of: list[Any], **body: Any) -> list[dict[str, Any]]:
    return [{**body, name: one} for one in of]


CHATTING: Any = {"model": MODEL, "messages": CHAT, "max_tokens": 1}
TOOLS = [[function(LONG)], [function("f"), function("f", **{LONG: 1})], [{"type": LONG}],
         *([function("f", type="object", properties={"a": one})] for one in SCHEMAS)]  # fmt: skip
ROLES = [[{"role": LONG, "content": "x"}], [{"role": "user", LONG: "x"}],
         [{"role": "user", "content": [{"type": LONG}]}],
         [{"role": "assistant", "tool_calls": [{"id": LONG, "type": LONG}]}]]  # fmt: skip
FORMATS = [{"type": LONG}, *({"type": "json_schema", "json_schema": {"name": "a", "schema": one}}
           for one in SCHEMAS), *TAGS]  # fmt: skip
FLAT = [{"type": LONG}, *({"type": "json_schema", "name": "a", "schema": one} for one in SCHEMAS)]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        *within("structured_outputs", STRUCTURED, model=MODEL, prompt="x", max_tokens=1),
        *within("kv_transfer_params", [{LONG: 1}], model=MODEL, prompt="x"),
        *within("logit_bias", [{LONG: 1}], model=MODEL, prompt="x"),
        *within("bad_words", [[LONG]], model=MODEL, prompt="x"),
    ],
    "/v1/chat/completions": [
        *within("tools", TOOLS, **CHATTING, tool_choice="required"),
        *within("tool_choice", [function(LONG), LONG], **CHATTING, tools=[function("f")]),
        *within("messages", ROLES, model=MODEL),
        *within("response_format", FORMATS, **CHATTING),
        *within("stream_options", [{LONG: 1}], **CHATTING, stream=True),
        *within("chat_template_kwargs", [{"tools": LONG}, {"messages": LONG}], **CHATTING),
    ],
    "/v1/responses": [
        *within("text", [{"format": one} for one in FLAT], model=MODEL, input="x"),
        *within("input", [[{"type": LONG}], [{"type": "message", "role": LONG}]], model=MODEL),
        *within("tools", [[{"type": LONG}]], model=MODEL, input="x"),
        *within("tools", [[{"type": "function", "name": LONG}]], model=MODEL, input="x"),
        *within("previous_response_id", [LONG], model=MODEL, input="x"),
    ],
    "/v1/messages": [
        *within("messages", ROLES, model=MODEL, max_tokens=1),
        *within("tools", [[{"name": LONG, "input_schema": {}}], [{"type": LONG}]], **CHATTING),
        *within("tool_choice", [{"type": "tool", "name": LONG}], **CHATTING),
    ],
    "/api/chat": [
        *within("format", SCHEMAS, model=MODEL, messages=CHAT),
        *within("options", [{LONG: 1}], model=MODEL, messages=CHAT),
    ],
    "/completion": [
        *within("json_schema", SCHEMAS, prompt="x", n_predict=1),
        *within("grammar", GRAMMARS, prompt="x", n_predict=1),
        *within("lora", [[{"id": LONG}], [{LONG: 1}]], prompt="x", n_predict=1),
    ],
    "/v1/embeddings": [{"model": LONG, "input": "x"}],
    "/v1/sessions": [{"model": LONG}],
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_what_is_deep_in_a_body(shared: LiveServer, path: str) -> None:
    for number, body in enumerate(BODIES[path]):
        answer = shared.http.post(path, json=body)
        assert len(answer.content) < 1500 or answer.status_code == 200, (number, list(body))
        assert answer.status_code < 500, (number, answer.text)


def outside(server: LiveServer) -> Iterator[Any]:
    path = "a" * 30_000
    yield server.http.get(f"/{path}")
    for above in ("responses", "sessions", "requests", "models"):
        yield server.http.get(f"/v1/{above}/{path}")
        yield server.http.delete(f"/v1/{above}/{path}")
    yield server.http.get(f"/live?{path}={path}")
    for name in ("content-type", "content-encoding", "authorization", "host", "x-request-id"):
        yield server.http.post("/v1/completions", content=b"{", headers={name: path})


def test_what_is_outside_of_a_body(shared: LiveServer) -> None:
    for answer in outside(shared):
        assert len(answer.content) < 1500, answer.url
