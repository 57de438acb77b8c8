"""The reference is what the code says: settings, fields, metrics and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import quire
from quire.http import errors

ROOT = Path(quire.__file__).parents[2]
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))

pytest.importorskip("quire_cluster")
pytestmark = pytest.mark.skipif(not PAGES, reason="Quire runs without sources")

_TABLE = re.compile(r"<!-- generated: (\w+) -->")
_CODE = re.compile(r'code="(\w+)"')


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_as_the_script_writes_it(page: Path) -> None:
    from scripts import reference

    text = page.read_text(encoding="utf-8")
    assert reference.updated(text) == text, "run python scripts/reference.py"


def test_every_table_is_on_a_page() -> None:
    from scripts import reference

    found = [name for page in PAGES for name in _TABLE.findall(page.read_text("utf-8"))]
    assert sorted(found) == sorted(reference.TABLES)


def test_every_code_of_an_error_is_told() -> None:
    told = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    sources = [*(ROOT / "src/quire/http").rglob("*.py"), *(ROOT / "cluster/src").rglob("*.py")]
    codes = {code for file in sources for code in _CODE.findall(file.read_text(encoding="utf-8"))}
    codes |= {code for *_, code in errors._KINDS if code is not None}
    assert len(codes) > 10
    assert {code for code in codes if code not in told} == set()
