"""Markdown as an answer has it, and the blocks of one that grows."""

from __future__ import annotations

import itertools
import re
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement

_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # as Markdown has them; str.splitlines knows more ends


class _PlainHeading(Heading):
    """A heading on the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class AnswerMarkdown(Markdown):
    """Markdown in which HTML is text: models write tags to be read."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        for token in self.parsed:
            if token.type == "html_block":
                token.type, token.tag, token.info = "fence", "code", "html"
            for child in token.children or ():
                if child.type == "html_inline":
                    child.type = "text"


def blocks(text: str) -> list[str]:
    """``text``, cut where its blocks begin: what follows it can change the last of them only."""
    starts = [
        token.map[0]
        for token in Markdown(text).parsed
        if token.level == 0 and token.map is not None and token.nesting >= 0
    ]
    lines = _LINE.findall(text)
    cuts = [0, *starts[1:], len(lines)]
    return ["".join(lines[cut:end]) for cut, end in itertools.pairwise(cuts)]
