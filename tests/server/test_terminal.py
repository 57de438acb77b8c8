"""``quire chat --url``: a model on a server, as a chat in a terminal has it."""

from __future__ import annotations

import pytest

from quire.core.errors import ConfigError, EngineError, QuireError
from quire.tools.terminal.models import ContextFullError, Piece
from quire.tools.terminal.remote import RemoteModel
from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, eventually, live_server

HELLO = [{"role": "user", "content": "hello"}]


def test_an_answer_is_streamed_and_told_how_it_ended(shared: LiveServer) -> None:
    tokens = shared.script("A list is a *sequence*, naïve ü.")
    model = RemoteModel(f"{shared.url}/v1/")
    assert (model.name, model.max_model_len) == (MODEL, MAX_MODEL_LEN)
    pieces = list(model.answer(HELLO, {"temperature": 0.0, "max_tokens": None}))
    assert len(pieces) > 5
    assert "".join(piece.text for piece in pieces) == "A list is a *sequence*, naïve ü."
    ending = pieces[-1].ending
    assert ending is not None and ending.finish_reason == "stop"
    assert ending.output_tokens == len(tokens) + 1 and ending.prompt_tokens > 1


def test_an_answer_that_is_closed_stops_the_server(server: LiveServer) -> None:
    server.executor.hold()
    answer = RemoteModel(server.url).answer(HELLO, {})
    server.executor.let(steps=3)
    assert isinstance(next(answer), Piece)
    answer.close()
    server.step_until(server.is_idle)
    assert server.num_aborted == 1


def test_a_conversation_that_is_too_long_is_told_from_other_refusals(shared: LiveServer) -> None:
    model = RemoteModel(shared.url, MODEL)
    long = [{"role": "user", "content": "word " * 400}]
    room, short = model.room(long), model.room(HELLO)
    assert room is not None and room < 1
    assert short is not None and MAX_MODEL_LEN - 60 < short < MAX_MODEL_LEN
    with pytest.raises(ContextFullError):
        next(model.answer(long, {}))
    with pytest.raises(QuireError, match="top_p") as refusal:
        next(model.answer(HELLO, {"top_p": 7}))
    assert not isinstance(refusal.value, ContextFullError)


def test_a_server_that_cannot_be_asked_is_named(shared: LiveServer) -> None:
    with pytest.raises(ConfigError, match=f"has no model other; it has {MODEL}"):
        RemoteModel(shared.url, "other")
    for url in ("localhost:8000", "ftp://host", "http://", "http://host:99999", "http://host:x"):
        with pytest.raises(ConfigError, match="url must be like"):
            RemoteModel(url)
    with pytest.raises(EngineError, match="does not answer"):
        RemoteModel("http://127.0.0.1:9")
    with pytest.raises(QuireError, match="refuses"):
        RemoteModel(f"{shared.url}/health")


def test_a_key_is_sent_and_its_absence_explained() -> None:
    with live_server(api_key=["secret"]) as server:
        with pytest.raises(ConfigError, match="api_key"):
            RemoteModel(server.url)
        assert RemoteModel(server.url, api_key="secret").name == MODEL
        eventually(server.is_idle)
