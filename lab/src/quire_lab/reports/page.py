"""One HTML page that needs nothing but itself: no network, no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from quire.core.errors import ConfigError
from quire.http.live.bundling import page_sources, script_of, sheet_of
from quire_lab.reports.style import Picture

_CSS = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1.5rem 2rem 4rem; max-width: 74rem; background: #fff;
  color: #1a1a1a; font: 16px/1.5 system-ui, "Segoe UI", Roboto, Arial,
  sans-serif; }
h1 { font-size: 1.9rem; margin: .5rem 0; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .4rem; padding-top: .8rem; border-top: 2px solid #ddd; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; }
p { max-width: 60rem; margin: .5rem 0; }
figure { margin: 1rem 0; }
figure img { width: 100%; height: auto; border: 1px solid #e4e4e4; }
iframe { width: 100%; height: 55rem; border: 1px solid #e4e4e4; }
figcaption, .note { color: #444; font-size: .92rem; max-width: 60rem; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem;
  border-bottom: 1px solid #ddd; }
th { background: #f4f4f4; border-bottom: 2px solid #999; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
nav ol { columns: 2; max-width: 60rem; margin: .5rem 0; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .88rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .8rem;
  margin: 1.2rem 0; }
.card { border: 1px solid #ccc; border-radius: 6px; padding: .6rem .9rem; }
.card b { display: block; font-size: 1.7rem; }
.card span { color: #444; font-size: .88rem; }
.chip { display: inline-block; width: .9em; height: .9em; border: 1px solid #333;
  vertical-align: -.1em; margin-right: .4em; }
a { color: #0a58a8; }
.lead { font-size: 1.2rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem; }
.wide { overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #e6e6e6; }
  h2 { border-top-color: #3a3d42; }
  figure img, iframe { border-color: #3a3d42; border-radius: 6px; }
  figcaption, .note, .card span { color: #b4b8be; }
  th { background: #25282d; border-bottom-color: #777; }
  th, td { border-bottom-color: #3a3d42; }
  pre { background: #22252a; }
  .card { border-color: #4a4e55; }
  .chip { border-color: #ddd; }
  a { color: #7db4ee; }
}
@media (max-width: 40rem) {
  body { padding: 1rem 1rem 3rem; }
  nav ol { columns: 1; }
  figure { overflow-x: auto; }
  figure img { min-width: 40rem; }
  .pair figure img { min-width: 0; }
  figcaption { position: sticky; left: 0; }
}
"""


class Page:
    """A page under construction. All text is escaped here, and nowhere else."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._contents: list[tuple[str, str]] = []  # anchor, title
        self._parts: list[str] = []
        self._pictures: list[Picture] = []

    def section(self, title: str) -> None:
        anchor = f"section-{len(self._contents) + 1}"
        self._contents.append((anchor, title))
        self._parts.append(f'<h2 id="{anchor}">{escape(title)}</h2>')

    def heading(self, title: str) -> None:
        self._parts.append(f"<h3>{escape(title)}</h3>")

    def paragraph(self, text: str, note: bool = False) -> None:
        kind = ' class="note"' if note else ""
        self._parts.append(f"<p{kind}>{escape(text)}</p>")

    def lead(self, text: str) -> None:
        """Add the summary for readers in a hurry."""
        self._parts.append(f'<p class="lead">{escape(text)}</p>')

    def pair(self, pictures: Iterable[Picture]) -> None:
        """Pictures beside each other where there is room."""
        self._parts.append('<div class="pair">')
        for picture in pictures:
            self.picture(picture)
        self._parts.append("</div>")

    def cards(self, cards: Iterable[tuple[str, str]]) -> None:
        """Figures in large type, each with what it is."""
        inside = "".join(
            f'<div class="card"><b>{escape(figure)}</b><span>{escape(what)}</span></div>'
            for figure, what in cards
        )
        self._parts.append(f'<div class="cards">{inside}</div>')

    def picture(self, picture: Picture) -> None:
        self._pictures.append(picture)
        data = base64.b64encode(picture.svg).decode()
        self._parts.append(
            f'<figure id="{escape(picture.name)}"><img alt="{escape(picture.title)}. '
            f'{escape(picture.note)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{escape(picture.note)}</figcaption></figure>"
        )

    def frame(self, title: str, html: str) -> None:
        """A page within this one, which needs nothing but itself either. It may have a script."""
        self._parts.append(f'<iframe title="{escape(title)}" srcdoc="{escape(html)}"></iframe>')

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        numbers: Sequence[int] = (),
        colours: Sequence[str] = (),
    ) -> None:
        """A table. ``numbers``: columns that are set right; ``colours``: a chip for each row."""
        kinds = [' class="number"' if i in numbers else "" for i in range(len(columns))]
        head = "".join(
            f"<th{kind}>{escape(one)}</th>" for kind, one in zip(kinds, columns, strict=True)
        )
        body = []
        for place, row in enumerate(rows):
            cells = [escape(cell) for cell in row]
            if colours:
                chip = f'<span class="chip" style="background:{colours[place]}"></span>'
                cells[0] = chip + cells[0]
            inside = (f"<td{kind}>{one}</td>" for kind, one in zip(kinds, cells, strict=True))
            body.append(f"<tr>{''.join(inside)}</tr>")
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def write(self, directory: Path, name: str) -> Path:
        """Write the page under this name, and its pictures as PNG files; the page's path.

        Raises:
            ConfigError: the directory cannot be written.
        """
        path = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for picture in self._pictures:
                (directory / f"{picture.name}.png").write_bytes(picture.png)
            path.write_text(self.html(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error
        return path

    def html(self) -> str:
        links = "".join(
            f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title in self._contents
        )
        first = next((i for i, part in enumerate(self._parts) if part.startswith("<h2")), 0)
        before, after = "\n".join(self._parts[:first]), "\n".join(self._parts[first:])
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self._title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
            f"<h1>{escape(self._title)}</h1>\n{before}\n<nav><ol>{links}</ol></nav>\n{after}\n"
            "</body>\n</html>\n"
        )


def moment_page(recording: bytes) -> str:
    """The blocks of a recording's first moment, as a page that needs nothing but itself."""
    sources = page_sources()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Memory</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="quire-recording" content="{base64.b64encode(recording).decode()}">\n'
        f"<style>\n{sheet_of(sources)}\n</style>\n</head>\n<body>\n"
        f'<main id="view"></main>\n<script type="module">\n{script_of(sources, "moment.js")}\n'
        "</script>\n</body>\n</html>\n"
    )
