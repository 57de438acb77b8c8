"""Pages of Markdown: which there are, their blocks of code, and what they say of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import quire

ROOT = Path(quire.__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *DOCS.rglob("*.md"),
    ROOT / "src/quire/models/demo/README.md",
]

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n\n"
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?"
    r"```(?P<kind>\w*)\n(?P<text>.*?)^```$"
    r"(?:\n\n```text\n(?P<prints>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"Save this as `([\w./]+)`")


class Block(NamedTuple):
    """A block of a page, as the reader meets it."""

    kind: str  # its language; empty: it is a figure
    text: str
    prints: str | None  # what the page says that it prints
    file: str | None  # what the line above it says that it is saved as
    why: str | None  # nobody runs it; None: somebody does

    @property
    def is_run(self) -> bool:
        return self.why is None and self.kind not in ("", "text")


def blocks(page: Path) -> Iterator[Block]:
    """In their order. AssertionError: a fence is not understood, so that nobody would run it."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    fences = sum(2 if one["prints"] is None else 4 for one in found)
    assert fences == len(re.findall(r"^ *```", text, re.MULTILINE)), page
    for one in found:
        file = next(iter(_FILE.findall(one["before"])), None)
        yield Block(one["kind"], one["text"], one["prints"], file, one["why"])
