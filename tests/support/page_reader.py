"""Reads an HTML page back: tables, pictures, pages in it, and what it loads from elsewhere."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path

_VOID = {"meta", "img", "br", "hr", "link", "input"}


class PageReader(HTMLParser):
    """tables: rows of cells, the header first. images: decoded. external: URLs of resources.

    frames: pages within this one, by title; their scripts are whole in them.
    """

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.images: dict[str, bytes] = {}  # by the figure's id
        self.external: list[str] = []
        self.frames: dict[str, str] = {}
        self.text = ""
        self._open: list[str] = []
        self._figure = ""
        self.feed(page if isinstance(page, str) else page.read_text(encoding="utf-8"))
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "figure":
            self._figure = values["id"] or ""
        elif tag == "img":
            kind, _, data = (values["src"] or "").partition(",")
            if kind == "data:image/svg+xml;base64":
                self.images[self._figure] = base64.b64decode(data, validate=True)
            else:
                self.external.append(values["src"] or "")
        elif tag == "iframe" and "src" not in values:
            self.frames[values["title"] or ""] = html = values["srcdoc"] or ""
            self.external += PageReader(html).external
        elif tag in ("link", "iframe") or (tag == "script" and "src" in values):
            self.external.append(str(values))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            assert "url(" not in data and "@import" not in data
            return
        self.text += data
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data

    def table(self, *header: str) -> list[list[str]]:
        """The rows of the table whose header begins with these cells."""
        found = [table for table in self.tables if table[0][: len(header)] == list(header)]
        assert len(found) == 1, f"{len(found)} tables begin with {header}"
        return found[0][1:]
