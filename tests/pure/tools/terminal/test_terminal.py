"""The screen of a terminal: answers as Markdown while they grow, and keys on a real one."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from quire.tools.terminal import rich_screen
from quire.tools.terminal.chat import Chat
from quire.tools.terminal.conversation import Message
from quire.tools.terminal.markdown import AnswerMarkdown, blocks
from quire.tools.terminal.models import Answer, Ending, Piece
from quire.tools.terminal.rich_screen import RichScreen
from quire.tools.terminal.screen import PlainScreen

ANSWER = """# Title

Some *text* with <b>tags</b> and [a link](http://example.org).

1. one
2. two

```python
x = 1

y = 2
```

| a | b |
|---|---|
| 1 | 2 |

> said

<think>
raw
</think>

The end.
"""


def rendered(pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What stays on a screen that shows these pieces, drawn as each comes."""
    monkeypatch.setattr(rich_screen, "_REFRESH", 0.0)
    output = StringIO()
    answer = rich_screen._GrowingAnswer(Console(file=output, width=60), markdown=True)
    with answer.live:
        for piece in pieces:
            answer.add(Piece(piece))
        answer.finish()
    return "\n".join(line.rstrip() for line in output.getvalue().strip().splitlines())


def test_an_answer_looks_alike_however_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rendered([ANSWER], monkeypatch)
    for size in (1, 5, 40):
        cut = [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]
        assert rendered(cut, monkeypatch) == whole
    assert "\n\n\n" not in whole
    for part in ("<b>tags</b>", "a link (http://example.org)", "<think>\n raw", "x = 1\n\n y = 2"):
        assert part in whole


@given(st.text(alphabet="ab#`|->*1. <\n\r\u2028\t", max_size=60))
def test_blocks_are_the_whole_text(text: str) -> None:
    assert "".join(blocks(text)) == text


def test_blocks_begin_where_markdown_has_them() -> None:
    assert blocks("a\u2028b\n\nc\x0cd\n\ne") == ["a\u2028b\n\n", "c\x0cd\n\n", "e"]


def test_a_models_text_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = rendered(["a\x1b[2Jb\x07\x9b1mc\r"], monkeypatch)
    assert shown == "a[2Jb1mc"


def test_what_a_server_says_cannot_either(capsys: pytest.CaptureFixture[str]) -> None:
    said = "no \x1b]52;c;aGk=\x07such \x9b2Jmodel\n\tat all"
    for screen in (PlainScreen(), RichScreen()):
        screen.note(said)
        screen.error(said)
    told = capsys.readouterr()
    assert "such" in told.out and "such" in told.err
    assert not {"\x1b", "\x07", "\x9b"} & {*told.out, *told.err}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_plain_screen_changes_no_text_but_for_a_terminal(is_terminal: bool) -> None:
    class Output(StringIO):
        def isatty(self) -> bool:
            return is_terminal

    output = Output()
    screen = PlainScreen(output)
    with screen.answering() as shown:
        shown.add(Piece("a\x1b[2Jb"))
    assert output.getvalue() == ("a[2Jb\n" if is_terminal else "a\x1b[2Jb\n")


def test_html_stays_text() -> None:
    kinds = [token.type for token in AnswerMarkdown("<div>\nx\n</div>").parsed]
    assert kinds == ["fence"]


class ScriptedModel:
    name, max_model_len = "scripted", None

    def room(self, messages: Sequence[Message]) -> None:
        return None

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        yield Piece(reasoning="thought")
        yield Piece("*one*\n\n")
        yield Piece("two")
        yield Piece(ending=Ending("stop"))


def interrupted_at(line: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Lines of rich's that two answers ran through, and the screen; Ctrl-C came at one of them."""
    monkeypatch.setattr(rich_screen, "_REFRESH", 0.0)
    output, ran, inputs = StringIO(), 0, iter(["a", "b"])

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal ran
        if not frame.f_globals["__name__"].startswith(("rich.console", "rich.live")):
            return None
        if event == "line":
            ran += 1
            if ran == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    screen = RichScreen.__new__(RichScreen)  # without keys
    screen._console, screen._markdown = Console(file=output, width=60, force_terminal=True), True
    monkeypatch.setattr(screen, "read", lambda: next(inputs, None) or end_of_input())
    chat = Chat(ScriptedModel(), screen, {})
    sys.settrace(trace)
    try:
        chat.run()
    finally:
        sys.settrace(None)
    screen.note("is heard")
    return ran, output.getvalue()


def end_of_input() -> str:
    raise EOFError


def test_ctrl_c_at_any_moment_leaves_a_screen_that_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        lines, shown = interrupted_at(None, monkeypatch)
        assert "stopped" not in shown and shown.count("two") >= 2
        for line in range(1, lines, lines // 60):
            shown = interrupted_at(line, monkeypatch)[1]
            assert shown.count("stopped") == 1, line
            assert "is heard" in shown, line
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


PROGRAM = """
import os, sys, time
from quire.tools.terminal.chat import Chat
from quire.tools.terminal.models import Ending, Piece
from quire.tools.terminal.rich_screen import RichScreen
class Model:
    name, max_model_len = "scripted", None
    def room(self, messages): return None
    def answer(self, messages, params):
        text = messages[-1]["content"]
        yield Piece(f"GOT {text.encode()}. ")
        if text == "wait":
            os.write(1, b"WAITING")
            for _ in range(600):  # a signal just before a sleep is heard after it
                time.sleep(0.1)
        yield Piece(ending=Ending("stop"))
screen = RichScreen()
Chat(Model(), screen, {}).run()
print("LEFT", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_keys_on_a_terminal(tmp_path: Path) -> None:
    import pty

    (tmp_path / "program.py").write_text(PROGRAM)
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which who runs the tests may ignore
        os.environ.update(
            PYTHONPATH=os.pathsep.join(sys.path), TERM="xterm", NO_COLOR="1",
            XDG_STATE_HOME=str(tmp_path), PROMPT_TOOLKIT_NO_CPR="1",
        )  # fmt: skip
        os.execv(sys.executable, [sys.executable, str(tmp_path / "program.py")])
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            assert select.select([terminal], [], [], 20)[0], shown
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # Linux: the other end is closed
                piece = b""
            assert piece, shown
            shown += piece.decode(errors="replace")
        shown = shown[shown.index(text) + len(text) :]

    def press(keys: str) -> None:
        until("\u203a")  # the prompt
        os.write(terminal, keys.encode())

    try:
        press("one\x1b\rtwo\r")  # Alt-Enter
        until("GOT b'one\\ntwo'")
        press("wait\r")
        until("WAITING")
        os.write(terminal, b"\x03")
        until("stopped")
        press("\x03")
        until("Ctrl-D")
        press("\x1b[A\x1b[A\r")  # up, in the history
        until("GOT b'one\\ntwo'")
        press("\x04")
        until("LEFT")
    finally:
        os.kill(pid, signal.SIGKILL)  # it has ended, if all went well
        os.close(terminal)
        os.waitpid(pid, 0)
    assert (tmp_path / "quire/chat_history").stat().st_mode & 0o777 == 0o600
