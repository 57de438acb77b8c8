"""From the bytes of a body to a request or to one short error, without a server."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from quire.core.errors import RequestError
from quire.http.answers.rendering import _render
from quire.http.guards import bodies
from quire.http.guards.bodies import MOST_CONTAINERS, MOST_MEMBERS, MOST_VALUES, parse
from quire.http.openai.requests import ChatRequest, CompletionRequest

TEXT = {"type": "text", "text": "a"}
NASTY = ['"', "\\", "[", "{", ":", ",", "x", "é", "\n", "😀", '\\"', "]}"]


def a_value(draw: random.Random, levels: int) -> Any:
    kind = draw.randrange(6 if levels else 4)
    if kind < 2:
        return "".join(draw.choices(NASTY, k=draw.randrange(6)))
    if kind < 4:
        return draw.choice([None, True, 0, -1.5, 10**30])
    items = [a_value(draw, levels - 1) for _ in range(draw.randrange(4))]
    if kind == 4:
        return items
    return {f"{number}{draw.choice(NASTY)}": item for number, item in enumerate(items)}


def structure(value: Any) -> tuple[int, int, int, int]:
    """Brackets, braces, colons and commas that spelling the value takes."""
    if not isinstance(value, (list, dict)):
        return (0, 0, 0, 0)
    inside = list(value.values()) if isinstance(value, dict) else value
    colons = len(value) if isinstance(value, dict) else 0
    own = (isinstance(value, list), isinstance(value, dict), colons, max(0, len(value) - 1))
    counts = [own, *map(structure, inside)]
    return tuple(map(sum, zip(*counts, strict=True)))  # type: ignore[return-value]


@pytest.mark.parametrize("piece", [1, 7, 2**18])
def test_structure_is_counted_outside_of_texts_only(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_PIECE", piece)
    draw = random.Random(piece)
    for _ in range(300):
        value = a_value(draw, levels=4)
        body = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode()
        assert bodies._counts_outside_texts(body) == structure(value), body


@pytest.mark.parametrize("piece", [1, 5, 17, 64])
def test_long_numbers_are_looked_for_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the body, none is longer than a few milliseconds; none is between two."""
    monkeypatch.setattr(bodies, "_PIECE", piece)
    for number, found in (("1" * 17, True), ("1" * 16, False), ("1e400", True), ("1e99", False)):
        for before in range(2 * piece):
            body = b" " * before + number.encode() + b" " * 20
            assert bodies._may_be_rounded(body) is found
            assert bodies._may_be_rounded(bytearray(body)) is found

    class Searched:
        def search(self, body: bytes, start: int, end: int) -> None:
            assert end - start < piece + 17

    monkeypatch.setattr(bodies, "_MAYBE_ROUNDED", Searched())
    parse(completion(json.dumps("1" * 500)), CompletionRequest)


def rendered(value: object, levels: int) -> bytes:
    out = bytearray()
    _render(value, levels, out, lambda: None)
    return bytes(out)


@pytest.mark.parametrize("levels", [0, 1, 3, 9])
def test_json_made_in_pieces_is_the_same_json(levels: int) -> None:
    draw = random.Random(levels)
    for _ in range(300):
        value = a_value(draw, levels=5)
        assert rendered(value, levels) == to_json(value)
    assert rendered([float("nan"), float("-inf")], levels) == b"[null,null]"
    assert rendered(iter([{"a": iter(())}]), 3) == b'[{"a":[]}]'


def completion(prompt: str) -> bytes:
    return b'{"model":"m","prompt":%b}' % prompt.encode()


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (f"[{'[],' * MOST_CONTAINERS}[]]", f"more than {MOST_CONTAINERS:,} lists and objects"),
        (f"[{'{},' * MOST_CONTAINERS}{{}}]", f"more than {MOST_CONTAINERS:,} lists and objects"),
        ("[" * MOST_CONTAINERS, f"more than {MOST_CONTAINERS:,} lists and objects"),
        ("{" + '"":0,' * MOST_MEMBERS + '"":0}', f"more than {MOST_MEMBERS:,} fields"),
        (f"[{'5,' * MOST_VALUES}5]", f"more than {MOST_VALUES:,} values"),
        ("[" * 1000 + "]" * 1000, "200 levels"),
    ],
)
def test_what_would_take_long_to_parse_is_refused(prompt: str, complaint: str) -> None:
    with pytest.raises(HTTPException, match=complaint) as caught:
        parse(completion(prompt), CompletionRequest)
    assert caught.value.status_code == 400


def test_texts_may_hold_anything_and_lists_what_can_be_served() -> None:
    code = '[{"a": [1, 2]}, {":": "\\\\"}]' * 10_000
    assert parse(completion(json.dumps(code)), CompletionRequest).prompt == code
    ids = [[7] * 60 for _ in range(2048)]
    assert parse(completion(json.dumps(ids)), CompletionRequest).prompt == ids
    messages = [{"role": "user", "content": [TEXT], "name": "b"}] * 2000
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert len(parse(body, ChatRequest).messages) == 2000


def test_json_is_read_as_clients_write_it() -> None:
    prompt = "é😀\u2028\x00"
    for ascii_only in (True, False):
        text = json.dumps({"model": "m", "prompt": prompt}, ensure_ascii=ascii_only)
        assert parse(text.encode("utf-8-sig"), CompletionRequest).prompt == prompt
    assert parse(b'{"model":"m","prompt":"x","prompt":"y"}', CompletionRequest).prompt == "y"


def test_a_priority_is_within_bounds() -> None:
    for priority in (-1000, 1000):
        body = json.dumps({"model": "m", "prompt": "x", "priority": priority})
        assert parse(body.encode(), CompletionRequest).priority == priority
    for priority in (-1001, 1001, 2**2000):
        body = json.dumps({"model": "m", "prompt": "x", "priority": priority})
        with pytest.raises(RequestError, match="priority: must be from -1,000 to 1,000"):
            parse(body.encode(), CompletionRequest)


def test_of_many_complaints_one_is_made() -> None:
    for body, field in (
        ({"prompt": "x", **{f"unknown-{number}": 0 for number in range(9999)}}, "unknown-0"),
        ({"prompt": [1.5] * 9999}, "prompt"),
        ({"prompt": "x", "stop_token_ids": ["x"] * 9999}, "stop_token_ids[0]"),
        ({"prompt": "x", "bad_words": [0] * 9999}, "bad_words[0]"),
        ({"prompt": "x", "logit_bias": {str(number): "x" for number in range(9999)}}, "logit_bias"),
    ):
        with pytest.raises(RequestError) as caught:
            parse(json.dumps({"model": "m", **body}).encode(), CompletionRequest)
        assert caught.value.field.removesuffix(".0") == field
        cause = caught.value.__context__
        assert len(getattr(cause, "errors", list)()) <= 1


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "user", "content": "x"}] * 4097, "messages"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}],
            "messages[0].content",
        ),
        ([{"role": "user", "content": "x", "name": "x" * 257}], "messages[0].name"),
    ],
)
def test_bounds_of_messages(messages: Any, field: str) -> None:
    with pytest.raises(RequestError, match="at most") as caught:
        parse(json.dumps({"model": "m", "messages": messages}).encode(), ChatRequest)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"a": [0] * 4096}, "at most 4,096 values"),
        ({"a": json.loads("[" * 16 + "]" * 16)}, "at most 16 levels"),
    ],
)
def test_bounds_of_template_variables(variables: Any, complaint: str) -> None:
    body = {"model": "m", "messages": [], "chat_template_kwargs": variables}
    with pytest.raises(RequestError, match=complaint) as caught:
        parse(json.dumps(body).encode(), ChatRequest)
    assert caught.value.field == "chat_template_kwargs"
    body["chat_template_kwargs"] = {"a": json.loads("[" * 15 + "]" * 15), "b": [0] * 4000}
    assert parse(json.dumps(body).encode(), ChatRequest).chat_template_kwargs
