"""A call arrives as it was meant, at every door, whole and in a stream, or it does not arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest

from support.live_server import MODEL, LiveServer
from support.speaking import WEATHER

FUNCTION = WEATHER["function"]
ASKED = [{"role": "user", "content": "weather?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'


class Told(NamedTuple):
    """What a client makes of an answer.

    calls: arguments, as a text where they are no object. status: of an error.
    """

    calls: list[Any] = []  # noqa: RUF012  # never changed
    content: str = ""
    ended: str = ""
    error: bool = False


def told_in(answer: httpx.Response) -> list[Any]:
    """The data of a stream's events."""
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# -- what clients of each door do --------------------------------------------------------------


def chat(server: LiveServer, stream: bool, most: int | None, stop: str | None) -> Told:
    answer = server.chat(messages=ASKED, tools=[WEATHER], stream=stream, max_tokens=most, stop=stop)
    if answer.status_code != 200:
        assert answer.json()["error"]["code"] == "broken_call"
        return Told(error=True)
    if not stream:
        (choice,) = answer.json()["choices"]
        calls = choice["message"].get("tool_calls", ())
        arguments = [read(call["function"]["arguments"]) for call in calls]
        return Told(arguments, choice["message"]["content"] or "", choice["finish_reason"])
    texts: list[str] = []
    content, ended = "", ""
    for chunk in told_in(answer):
        if "error" in chunk:
            assert chunk["error"]["code"] == "broken_call"
            return Told(error=True)
        (choice,) = chunk["choices"]
        content += choice["delta"].get("content") or ""
        ended = choice["finish_reason"] or ended
        for call in choice["delta"].get("tool_calls", ()):
            texts += [""] if "id" in call else []
            texts[call["index"]] += call["function"]["arguments"]
    return Told([*map(read, texts)], content, ended)


def responses(server: LiveServer, stream: bool, most: int | None, stop: str | None) -> Told:
    body = {"model": MODEL, "input": "weather?", "tools": [{"type": "function", **FUNCTION}]}
    answer = server.http.post(
        "/v1/responses", json={**body, "stream": stream, "max_output_tokens": most}
    )
    if answer.status_code != 200:
        return Told(error=True)
    response = answer.json() if not stream else {}
    deltas: dict[int, str] = {}
    for event in told_in(answer) if stream else ():
        if event["type"] == "error":
            return Told(error=True)
        if event["type"] == "response.function_call_arguments.delta":
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
        response = event.get("response", response)
    calls = {i: one for i, one in enumerate(response["output"]) if one["type"] == "function_call"}
    if stream:
        assert deltas == {index: one["arguments"] for index, one in calls.items()}
    for call in calls.values():
        assert (call["status"] == "completed") == isinstance(read(call["arguments"]), dict)
    said = [one for one in response["output"] if one["type"] == "message"]
    content = "".join(part["text"] for one in said for part in one["content"])
    ended = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}
    return Told(
        [read(call["arguments"]) for call in calls.values()], content, ended[response["status"]]
    )


def messages(server: LiveServer, stream: bool, most: int | None, stop: str | None) -> Told:
    tool = {"name": "weather", "input_schema": FUNCTION["parameters"]}
    stops = [] if stop is None else [stop]
    body = {"model": MODEL, "max_tokens": most or 300, "messages": ASKED, "tools": [tool]}
    answer = server.http.post(
        "/v1/messages", json={**body, "stream": stream, "stop_sequences": stops}
    )
    if answer.status_code != 200:
        return Told(error=True)
    ends = {"tool_use": "tool_calls", "max_tokens": "length"}
    if not stream:
        said = answer.json()
        calls = [block["input"] for block in said["content"] if block["type"] == "tool_use"]
        content = "".join(block.get("text", "") for block in said["content"])
        return Told(calls, content, ends.get(said["stop_reason"], "stop"))
    texts: dict[int, str] = {}
    content, ended = "", ""
    for event in told_in(answer):
        match event:
            case {"type": "error"}:
                return Told(error=True)
            case {"type": "content_block_start", "index": i, "content_block": {"type": "tool_use"}}:
                texts[i] = ""
            case {"delta": {"partial_json": text}}:
                texts[event["index"]] += text
            case {"delta": {"text": text}}:
                content += text
            case {"delta": {"stop_reason": reason}}:
                ended = ends.get(reason, "stop")
    return Told([*map(read, texts.values())], content, ended)


def ollama(server: LiveServer, stream: bool, most: int | None, stop: str | None) -> Told:
    options: dict[str, Any] = {} if most is None else {"num_predict": most}
    options |= {} if stop is None else {"stop": [stop]}
    body = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "options": options}
    answer = server.http.post("/api/chat", json={**body, "stream": stream})
    if answer.status_code != 200:
        return Told(error=True)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    if "error" in lines[-1]:
        return Told(error=True)
    said = [line["message"] for line in lines]
    calls = [call["function"]["arguments"] for one in said for call in one.get("tool_calls", ())]
    content = "".join(one["content"] for one in said)
    ended = lines[-1]["done_reason"]
    return Told(calls, content, "tool_calls" if calls and ended == "stop" else ended)


Ask = Callable[[LiveServer, bool, "int | None", "str | None"], Told]
DOORS: dict[str, Ask] = {
    "chat": chat, "responses": responses, "messages": messages, "ollama": ollama,
}  # fmt: skip
every_door = pytest.mark.parametrize("door", DOORS)
both_ways = pytest.mark.parametrize("stream", [False, True])


@every_door
@both_ways
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"city": "a\n\tb"}', "a\n\tb"),
        (r'{"city": "C:\dir"}', r"C:\dir"),
        (r'{"city": "\ud83d"}', "�"),
        ("{'city': 'x', }", "x"),
        ('{"city": 12345678901234567890}', 12345678901234567890),
    ],
)
def test_what_was_meant_arrives(
    speaking: LiveServer, door: str, stream: bool, written: str, meant: Any
) -> None:
    speaking.script(CALL % written)
    assert DOORS[door](speaking, stream, None, None) == Told([{"city": meant}], "", "tool_calls")


@every_door
@both_ways
def test_what_cannot_be_mended_is_an_error_or_content(
    speaking: LiveServer, door: str, stream: bool
) -> None:
    for written in ('{"city": NaN}', '{"city": "a" b"}', '{"city": [1e999, b]}'):
        speaking.script(CALL % written)
        assert DOORS[door](speaking, stream, None, None) == Told(error=True), written
    for written in ("{city: 1}", "[1]"):
        speaking.script(CALL % written)
        assert DOORS[door](speaking, stream, None, None) == Told([], CALL % written, "stop")


@every_door
@both_ways
def test_a_model_that_stops_within_a_call_has_not_called(
    speaking: LiveServer, door: str, stream: bool
) -> None:
    speaking.script((CALL % '{"city": "Paris"}').partition("ris")[0])
    assert DOORS[door](speaking, stream, None, None) == Told(error=True)


@every_door
@both_ways
def test_a_call_that_is_cut_is_not_delivered_as_whole(
    speaking: LiveServer, door: str, stream: bool
) -> None:
    written = CALL % '{"city": "Paris", "days": [1, 2]}'
    whole = len(speaking.script(written))
    for most in range(1, whole):
        told = DOORS[door](speaking, stream, most, None)
        assert told.ended == "length" and not told.error
        for call in told.calls:
            assert isinstance(call, str) or call == {"city": "Paris", "days": [1, 2]}
            assert call or door != "ollama"
        if door == "ollama" or (door == "messages" and not stream):
            assert all(isinstance(call, dict) for call in told.calls)
            assert told.calls or written.startswith(told.content)


@pytest.mark.parametrize("door", ["chat", "messages", "ollama"])
@both_ways
def test_a_stop_string_within_arguments_is_a_stop(
    speaking: LiveServer, door: str, stream: bool
) -> None:
    speaking.script("\n".join([CALL % '{"city": "Rome"}', CALL % '{"city": "Paris"}']))
    told = DOORS[door](speaking, stream, None, "Paris")
    first, *others = told.calls
    assert first == {"city": "Rome"} and all(isinstance(call, str) for call in others)
    if door != "ollama":  # which has no such word: calls are to be looked at
        assert told.ended == "stop"
    told = DOORS[door](speaking, stream, None, "\n<tool_call>")
    assert told == Told([{"city": "Rome"}], "", "tool_calls")


@pytest.mark.parametrize("door", ["messages", "ollama"])
def test_a_number_that_no_object_holds_is_an_error(speaking: LiveServer, door: str) -> None:
    speaking.script(CALL % '{"city": 1e999}')
    assert DOORS[door](speaking, False, None, None) == Told(error=True)


@both_ways
def test_a_call_that_is_not_told_may_be_broken(speaking: LiveServer, stream: bool) -> None:
    speaking.script("\n".join([CALL % '{"city": "Rome"}', CALL % '{"city": NaN}']))
    body = {"messages": ASKED, "tools": [WEATHER], "parallel_tool_calls": False}
    answer = speaking.chat(**body, stream=stream)
    assert answer.status_code == 200 and "broken_call" not in answer.text
