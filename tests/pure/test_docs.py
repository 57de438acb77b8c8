"""What pages refer to is there: links, commands, their flags; no block of code is one that nobody
runs without a word; and all pages are in the site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import flags_of_commands
from support.pages import DOCS, PAGES, ROOT, blocks

RECORDS = sorted((ROOT / "benchmarks/peers/records").glob("*.json"))

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:quire|curl|make|pip|python|docker) ")
_TARGET = re.compile(r"^make ([\w-]+)", re.MULTILINE)
_FLAG = re.compile(r"--?[a-z]")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="Quire runs without sources")


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
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert f": {name}\n" in settings, f"{name} is missing from mkdocs.yml"


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Those of ``quire`` that blocks for a shell begin lines with, and the flags after them."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines() if block.kind == "bash" else ():
            for command in re.split(r"[;|&]", line.partition(" #")[0]):
                words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", command).split()
                if words[:1] == ["quire"] and len(words) > 1:
                    name = " ".join(words[1:3] if words[1] == "bench" else words[1:2])
                    yield name, [word for word in words if _FLAG.match(word)]


def test_commands_have_the_flags_that_are_shown() -> None:
    for package in ("quire_lab", "quire_cluster"):
        pytest.importorskip(package)
    known = flags_of_commands()
    shown = [(page, *command) for page in PAGES for command in commands(page)]
    assert len(shown) > 50
    for page, name, flags in shown:
        unknown = {one.split("=")[0].split(".")[0] for one in flags} - known[name]
        assert not unknown, f"{page.name}: quire {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_nobody_runs_says_why(page: Path) -> None:
    """Others are run by tests/torch/test_pages.py and test_tutorial.py."""
    makes = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in blocks(page):
        if block.kind in ("", "text"):  # a figure, or what something prints
            assert not _COMMAND.match(block.text)
        assert block.kind in ("", "text", "bash", "python", "yaml", "json", "diff")
        if block.why is not None:
            assert re.match(
                "installs|needs|takes|starts|downloads|compiles|the first two", block.why
            )
        for target in _TARGET.findall(block.text) if block.kind == "bash" else ():
            assert f"\n{target}:" in makes or target.startswith(".")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_chart_shows_its_record_which_is_told_with_its_machine(record: Path) -> None:
    told = (DOCS / "performance-servers.md").read_text(encoding="utf-8")
    chart = (DOCS / f"images/peers-{record.stem}.svg").read_text(encoding="utf-8")
    for rows in json.loads(record.read_text(encoding="utf-8"))["shapes"].values():
        for row in rows:
            for workload in row["workloads"].values():
                rate = workload["tokens_per_second"]
                shown = f"{rate:,.0f}" if rate >= 20 else f"{rate:.1f}"
                assert f">{shown}<" in chart, "run python scripts/peer_charts.py"
                assert f"{rate}" in told


def test_core_is_as_long_as_the_readme_says() -> None:
    told = re.search(r"has ([\d,]+) lines", (ROOT / "README.md").read_text(encoding="utf-8"))
    files = (ROOT / "src/quire/core").rglob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert told is not None and abs(int(told[1].replace(",", "")) - lines) < lines / 20


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_no_cell_is_longer_than_two_lines(name: str) -> None:
    """But for who may import whom, which is as long as it is."""
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = line.strip("|").split(" | ")
            long = [cell for cell in cells if len(cell) > 205 and "core/" not in cell]
            assert long == []
