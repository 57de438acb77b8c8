"""A chat over a scripted model and screen: turns, commands, what is dropped and what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.tools.terminal.chat import Chat
from quire.tools.terminal.conversation import Message
from quire.tools.terminal.models import Answer, ContextFullError, Ending, Piece
from quire.tools.terminal.screen import whole_message


class ScriptedModel:
    """Answers with the number of messages. A character is a token."""

    name = "scripted"

    def __init__(self, max_model_len: int | None = None, knows_room: bool = True) -> None:
        self.max_model_len = max_model_len
        self.knows_room = knows_room
        self.heard: list[list[Message]] = []
        self.params: list[Mapping[str, Any]] = []
        self.interrupt = self.closed = False
        self.refusal: RequestError | None = None

    def room(self, messages: Sequence[Message]) -> int | None:
        if self.max_model_len is None or not self.knows_room:
            return None
        return self.max_model_len - _length(messages)

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        self.heard.append([dict(message) for message in messages])
        self.params.append(dict(params))
        if self.refusal is not None:
            raise self.refusal
        if self.max_model_len is not None and _length(messages) >= self.max_model_len:
            raise ContextFullError("too long", "messages")
        try:
            yield Piece("answer ")
            if self.interrupt:
                raise KeyboardInterrupt
            yield Piece(f"{len(messages)}")
            yield Piece(ending=Ending("stop", _length(messages), 8))
        finally:
            self.closed = True


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


class ScriptedScreen:
    keys: Mapping[str, str] = {}

    def __init__(self, *typed: str | BaseException) -> None:
        self._typed = iter(typed)
        self.lines: list[str] = []

    def read(self) -> str:
        given = next(self._typed, EOFError())
        if isinstance(given, BaseException):
            raise given
        return given

    @contextmanager
    def answering(self) -> Iterator[ScriptedScreen]:
        self._growing = ""
        try:
            yield self
        finally:
            if self._growing:
                self.lines.append(self._growing)

    def add(self, piece: Piece) -> None:
        self._growing += piece.text

    def note(self, text: str) -> None:
        self.lines.append(f"({text})")

    def error(self, text: str) -> None:
        self.lines.append(f"!{text}")


def talk(
    model: ScriptedModel, *typed: str | BaseException, system: str = "", **params: Any
) -> tuple[list[str], Chat]:
    screen = ScriptedScreen(*typed)
    chat = Chat(model, screen, params, system)
    chat.run()
    return screen.lines, chat


def said(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages]


def test_a_conversation_is_told_whole_after_its_system_prompt() -> None:
    model = ScriptedModel()
    lines, _ = talk(model, "one", "  ", "/etc/hosts?", system="be brief")
    assert lines == ["answer 2", "answer 4"]
    assert said(model.heard[1]) == ["be brief", "one", "answer 2", "/etc/hosts?"]


def test_an_interrupt_stops_the_answer_and_not_the_chat() -> None:
    model = ScriptedModel()
    model.interrupt = True
    lines, _ = talk(model, "one", KeyboardInterrupt(), "two")
    assert lines == ["answer ", "(stopped)", "(Ctrl-D or /exit leaves)", "answer ", "(stopped)"]
    assert model.closed
    assert said(model.heard[1]) == ["one", "answer ", "two"]  # what came stays


def test_an_interrupt_before_the_answer_takes_the_message_back() -> None:
    class Hurried(ScriptedModel):
        def room(self, messages: Sequence[Message]) -> int | None:
            if messages[-1]["content"] == "one":
                raise KeyboardInterrupt
            return None

    model = Hurried()
    lines, _ = talk(model, "one", "two")
    assert lines == ["(stopped)", "answer 1"]


@pytest.mark.parametrize("knows_room", [True, False])
def test_the_oldest_turns_make_room_and_the_person_is_told(knows_room: bool) -> None:
    model = ScriptedModel(39, knows_room)
    lines, chat = talk(model, "a" * 10, "b" * 10, "c" * 20, system="s")
    assert lines[-2:] == ["answer 2", "(the context is full: the oldest 2 turns were dropped)"]
    assert said(model.heard[-1]) == ["s", "c" * 20]
    assert len(chat.conversation.turns) == 1


def test_a_refused_message_leaves_the_conversation_as_it_was() -> None:
    model = ScriptedModel(60, knows_room=False)
    lines, _ = talk(model, "one", "two", "x" * 100, "three")
    assert lines[2] == "!too long"
    assert said(model.heard[-1]) == ["one", "answer 1", "two", "answer 3", "three"]


def test_a_refused_regeneration_keeps_the_answer_that_there_was() -> None:
    model = ScriptedModel()
    screen = ScriptedScreen("one")
    chat = Chat(model, screen, {})
    chat.run()
    model.refusal = RequestError("no", "messages")
    chat._screen = ScriptedScreen("/regenerate")
    chat.run()
    assert said(chat.conversation.messages()) == ["one", "answer 1"]


def test_regenerate_asks_the_same_again() -> None:
    model = ScriptedModel()
    talk(model, "/regenerate", "one", "two", "/regenerate", "three")
    assert said(model.heard[1]) == said(model.heard[2]) == ["one", "answer 1", "two"]
    assert said(model.heard[3])[-1] == "three"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("/help", "(/regenerate "),
        ("/sav x", "!unknown command /sav; did you mean /save?"),
        ("/", "!unknown command /;"),
        ("/xyzzy", "!unknown command /xyzzy; /help lists them"),
        ("/save", "!/save needs the name of a file"),
        ("/save file", "!there is nothing to save yet"),
        ("/regenerate", "!there is nothing to answer yet"),
        ("/set", "(temperature = 0.5)"),
        ("/set temprature 1", "!there is no parameter temprature; did you mean temperature?"),
        ("/set temperature -1", "!temperature must be "),
        ("/set top_p=2", "!top_p must be "),
        ("/set n 2", "!there is no parameter n"),
        ("/system", "(there is no system prompt)"),
    ],
)
def test_commands_explain_themselves_and_never_reach_the_model(typed: str, shown: str) -> None:
    model = ScriptedModel()
    lines, _ = talk(model, typed, temperature=0.5)
    assert any(line.startswith(shown) for line in lines), lines
    assert not model.heard


def test_parameters_are_set_and_taken_back() -> None:
    model = ScriptedModel()
    talk(model, "/set max-tokens 7", "/set stop = END", "/set temperature 1", "one",
         "/set max_tokens", "/set temperature", "two", temperature=0.5)  # fmt: skip
    assert model.params[0] == {"temperature": 1, "max_tokens": 7, "stop": "END"}
    assert model.params[1] == {"temperature": 0.5, "max_tokens": None, "stop": "END"}


def test_system_and_clear_begin_anew() -> None:
    model = ScriptedModel()
    talk(model, "one", "/system be rude", "two", "/clear", "three", "/system -", "four", "/exit",
         "five")  # fmt: skip
    assert [said(heard) for heard in model.heard] == [
        ["one"], ["be rude", "two"], ["be rude", "three"], ["four"],
    ]  # fmt: skip


def test_save_writes_messages_or_markdown_and_overwrites_its_own_only(tmp_path: Path) -> None:
    values, text, other = (tmp_path / name for name in ("c.json", "c.md", "other"))
    other.write_text("mine")
    lines, _ = talk(
        ScriptedModel(), "one", f"/save {values}", f"/save {text}", "two", f"/save {values}",
        f"/save {other}", f"/save {tmp_path}/nowhere/c.md",
    )  # fmt: skip
    assert said(json.loads(values.read_text())) == ["one", "answer 1", "two", "answer 3"]
    assert text.read_text() == "**user**\n\none\n\n**assistant**\n\nanswer 1\n"
    assert other.read_text() == "mine" and "exists already" in lines[-2]
    assert "cannot be written" in lines[-1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['"""', "a", '  b"""'], "a\n  b"),
        (['"""one"""'], "one"),
        (['say """hi"""'], 'say """hi"""'),
        (['"""never', "closed"], "never\nclosed"),
    ],
)
def test_three_quotes_hold_several_lines(lines: list[str], message: str) -> None:
    rest = iter(lines)

    def line() -> str:
        for one in rest:
            return one
        raise EOFError

    assert whole_message(line) == message
