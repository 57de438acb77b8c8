"""What of a request routing by prefixes compares."""

from __future__ import annotations

from typing import Any

import pytest

from quire_cluster.routing import PIECE, hint_of, prefix_of

LONG = "word " * 200
SYSTEM = {"role": "system", "content": LONG}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, *messages], **fields}


def shared(a: dict[str, Any], b: dict[str, Any]) -> int:
    """Pieces with which both begin."""
    ours, theirs = (prefix_of(body, "").pieces for body in (a, b))
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(ours), len(theirs)))


HI, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": LONG}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"prompt": LONG}, {"prompt": LONG + LONG}, True),
        ({"prompt": LONG}, {"prompt": [LONG, "another"]}, True),
        ({"prompt": [1, 2] * 200}, {"prompt": [1, 2] * 300}, True),
        ({"prompt": [1, 2] * 200}, {"prompt": [[1, 2] * 300, [7]]}, True),
        (chat(HI), chat(HI, ANSWER, HI), True),
        (chat(HI, temperature=0.5), chat(HI, stream=True), True),
        ({"prompt": LONG}, {"prompt": "x" + LONG}, False),
        ({"prompt": LONG}, {"input": LONG}, False),
        (chat(HI), chat(HI, tools=[{"type": "function"}]), False),
        ({"prompt": [1, 2] * 200}, {"prompt": [2, 1] * 200}, False),
    ],
)
def test_requests_that_begin_alike(one: dict[str, Any], other: dict[str, Any], alike: bool) -> None:
    pieces = len(prefix_of(one, "").pieces)
    assert pieces >= 5
    assert shared(one, other) == (pieces if alike else 0)


def test_what_goes_on_begins_with_what_it_goes_on_from() -> None:
    for length in range(900, 900 + PIECE):  # wherever pieces end
        one = {"messages": [{"role": "user", "content": "x" * length}]}
        assert shared(one, {"messages": [*one["messages"], HI]}) == len(prefix_of(one, "").pieces)


def test_a_piece_says_all_before_it() -> None:
    one, other = prefix_of({"prompt": "a" + LONG}, ""), prefix_of({"prompt": "b" + LONG}, "")
    assert not set(one.pieces) & set(other.pieces)
    assert len(one.pieces) == len(b"prompt" + b"a" + LONG.encode()) // PIECE
    assert one.num_tokens == 1007 // 4


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": None}, {"prompt": 7}, {"messages": [1, None, []]}, {"input": [[[]]]},
     {"prompt": "\ud800" * 999}, {"prompt": [2**40] * 99}],
)  # fmt: skip
def test_anything_has_a_beginning(body: dict[str, Any]) -> None:
    prefix_of(body, "\ud800")


def test_salts_and_adapters_keep_apart() -> None:
    """What an engine would not find in its cache is nothing to be routed by."""
    told = [
        hint_of("/v1/completions", {"prompt": LONG, **fields}, cache).prefix.pieces[0]
        for fields, cache in [({}, ""), ({"cache_salt": "a"}, ""), ({"cache_salt": "b"}, ""),
                              ({}, "key"), ({}, "adapter")]
    ]  # fmt: skip
    assert len(set(told)) == 5


REFERENCE = {"type": "item_reference", "id": "msg_ab-" + "f" * 33}


@pytest.mark.parametrize(
    ("path", "body", "replica"),
    [
        ("/v1/sessions/session-ab12-" + "0" * 32 + "/append", {}, "ab12"),
        ("/v1/responses/resp_ab12-" + "0" * 32, {}, "ab12"),
        ("/v1/responses", {"previous_response_id": "resp_ab12-" + "0" * 32}, "ab12"),
        ("/v1/responses", {"input": [REFERENCE]}, "ab"),
        ("/v1/responses", {"previous_response_id": 7, "input": [{"type": "item_reference"}]}, None),
        ("/v1/sessions/session-" + "0" * 32, {}, None),
        ("/v1/completions", {"prompt": "session-ab12-" + "0" * 32}, None),
    ],
)  # fmt: skip
def test_what_is_kept_is_asked_for_where_it_is(
    path: str, body: dict[str, Any], replica: str | None
) -> None:
    assert hint_of(path, body, "").replica == replica
