"""Every link in the documentation leads somewhere, and every page is part of the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire

ROOT = Path(quire.__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "src/quire/models/demo/README.md",
]

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="Quire runs without sources")


def anchors(page: Path) -> set[str]:
    """What a heading is called in links to it."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    headings = (heading.lower() for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_page_is_in_the_site() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in settings, f"{page.name} is missing from mkdocs.yml"
