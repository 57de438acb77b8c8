"""A terminal: line editing with a history, answers as Markdown."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from quire.tools.terminal.commands import NAMES
from quire.tools.terminal.markdown import AnswerMarkdown, blocks
from quire.tools.terminal.models import Piece
from quire.tools.terminal.screen import QUOTES, Shown, harmless, is_open, unquoted

_PROMPT, _MORE = "› ", "  "
_REFRESH = 0.05  # seconds between looks of an answer that grows


class RichScreen:
    """A terminal that can move its cursor.

    markdown: answers are Markdown; else their text is shown as it is.
    """

    keys: Mapping[str, str] = {
        "Alt-Enter": f"begin a new line ({QUOTES} before and after several lines does too)",
        "Up, Ctrl-R": "what was typed before",
        "Ctrl-C": "stop an answer",
    }

    def __init__(self, markdown: bool = True) -> None:
        self._console = Console(highlight=False)
        self._markdown = markdown
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=WordCompleter(list(NAMES), sentence=True),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_bindings(),
            prompt_continuation=_MORE,
        )

    def read(self) -> str:
        bold = "" if self._console.no_color else "\x1b[1;36m"
        return unquoted(self._session.prompt(ANSI(f"{bold}{_PROMPT}\x1b[0m")))

    @contextmanager
    def answering(self) -> Iterator[Shown]:
        growing = _GrowingAnswer(self._console, self._markdown)
        try:
            with _drawn_whole():
                growing.live.start(refresh=True)
            yield growing
        finally:
            with _drawn_whole():
                growing.finish()
                growing.live.stop()
        if growing.printed:
            with _drawn_whole():
                self._console.print()

    def note(self, text: str) -> None:
        with _drawn_whole():
            self._console.print(Text(harmless(text), style="dim"))

    def error(self, text: str) -> None:
        with _drawn_whole():
            self._console.print(Text(harmless(text), style="red"))


@contextmanager
def _drawn_whole() -> Iterator[None]:
    """Ctrl-C waits until it is drawn: half of it would leave rich silent, with a buffer open."""
    came = False

    def later(number: int, frame: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class _GrowingAnswer:
    """Blocks that are whole are printed for good; the last one is drawn again as it grows."""

    def __init__(self, console: Console, markdown: bool) -> None:
        self._console = console
        self._markdown = markdown
        self._reasoning = self._text = ""
        self.printed = False  # whether there is something above the block that grows
        self._drawn = 0.0
        self.live = Live(Text("…", "dim"), console=console, auto_refresh=False, transient=True)

    def add(self, piece: Piece) -> None:
        self._reasoning += harmless(piece.reasoning)
        if piece.text and self._reasoning:
            with _drawn_whole():
                self._print(Text(self._reasoning.strip(), "dim italic"))
                self._reasoning = ""
        self._text += harmless(piece.text)
        now = time.monotonic()
        if now - self._drawn >= _REFRESH:
            self._drawn = now
            with _drawn_whole():
                self._draw()

    def _draw(self) -> None:
        *whole, self._text = self._blocks() or [""]
        for block in whole:
            self._print(self._rendered(block))
        self.live.update(self._tail(), refresh=True)

    def finish(self) -> None:
        """Print what has not been printed yet."""
        self.live.update(Text(), refresh=True)
        if self._reasoning.strip():
            self._print(Text(self._reasoning.strip(), "dim italic"))
        for block in self._blocks():
            self._print(self._rendered(block))

    def _blocks(self) -> list[str]:
        return blocks(self._text) if self._markdown else self._text.splitlines(keepends=True)

    def _rendered(self, text: str) -> RenderableType:
        return AnswerMarkdown(text) if self._markdown else Text(text.removesuffix("\n"))

    def _print(self, block: RenderableType) -> None:
        lines = self._lines(block)
        if self._markdown:
            if not lines:
                return
            if self.printed:
                self._console.print()
        self._console.print(*lines, sep="\n")
        self.printed = True

    def _lines(self, block: RenderableType) -> list[Text]:
        """A block as it is shown, without the empty lines that some begin and end with."""
        lines = [
            Text.assemble(*((part.text, part.style or "") for part in line))
            for line in self._console.render_lines(block, pad=False)
        ]
        written = [number for number, line in enumerate(lines) if line.plain.strip()]
        return lines[written[0] : written[-1] + 1] if written else []

    def _tail(self) -> RenderableType:
        """The last lines of the growing block that fit in the terminal."""
        growing: RenderableType = Text(self._reasoning.strip() or "…", "dim italic")
        if self._text:
            growing = self._rendered(self._text)
        lines = self._lines(growing)
        if self.printed and self._markdown:
            lines.insert(0, Text())
        return Text("\n").join(lines[-max(1, self._console.height - 2) :])


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _history() -> History:
    """The input history, in the file where state is kept; in none if that cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    file = state / "quire" / "chat_history"
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        return FileHistory(str(file))
    return InMemoryHistory()
