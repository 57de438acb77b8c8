"""Pages for the documentation's site: docs/ and files at the root, copied to build/pages.

Links are written for readers of the repository; those that lead out of the site become plain text.
The changes are one file there, and pages of a bearable length here.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS, PAGES = ROOT / "docs", ROOT / "build/pages"
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md",
           "CHANGELOG.md": "changelog.md"}  # fmt: skip
_LONGEST = 18_000  # characters of a page of changes
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def in_site(markdown: str, base: Path, page: Path) -> str:
    """A page whose links start at ``base``, as the site has it as ``page``."""

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = (base / target).resolve()
        if not path.exists():
            return match[0]  # of which the generator complains
        name = str(path.relative_to(ROOT))
        if not path.is_relative_to(DOCS) and name not in AT_ROOT:
            return text
        there = AT_ROOT[name] if name in AT_ROOT else path.relative_to(DOCS)
        return f"[{text}]({os.path.relpath(there, page.parent)}{anchor or ''})"

    return _LINK.sub(link, markdown)


def changes(markdown: str) -> Iterator[str]:
    """Pages of them, the newest first, each under the headings of what is gone on with."""
    title, headings, page = markdown.splitlines()[0], [""], ""
    for line in markdown.splitlines(keepends=True):
        if line.startswith("#"):
            above = len(line) - len(line.lstrip("#")) - 1
            headings = [*headings[:above], line]
        if line.startswith(("- ", "## ", "### ")) and len(page) > _LONGEST:
            yield page
            page = "\n".join([f"{title}\n", *headings[1 : len(headings) - (line == headings[-1])]])
            page += "\n"
        page += line
    yield page


def write(pages: Path = PAGES) -> None:
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages)
    sources = {ROOT / name: Path(page) for name, page in AT_ROOT.items()}
    sources |= {file: file.relative_to(DOCS) for file in DOCS.rglob("*.md")}
    for source, page in sources.items():
        markdown = source.read_text(encoding="utf-8")
        text = in_site(markdown, source.parent, page)
        parts = list(changes(text)) if page.stem == "changelog" else [text]
        for number, part in enumerate(parts):
            name = f"{page.stem}{f'-{number + 1}' * (number > 0)}.md"
            (pages / page).with_name(name).write_text(part, encoding="utf-8")


if __name__ == "__main__":
    write()
