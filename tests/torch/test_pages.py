"""Every block of the pages is run, but for those that say why not.

The tutorial has a test of its own. All pages take minutes: ``make test-docs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.furnished import furnish, instead
from support.pages import DOCS, PAGES, ROOT, blocks
from support.reading import Reader

ALL = "QUIRE_DOCS" in os.environ
BY_OTHERS = {"tutorial.md"}  # tests/torch/test_tutorial.py
SOME = {"README.md", "docs/howto/sessions.md"}

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="Quire runs without its docs")


def pages() -> Iterator[str]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        wanted = page.name not in BY_OTHERS and (ALL or name in SOME)
        if wanted and any(block.is_run for block in blocks(page)):
            yield name


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [*pages()])
def test_every_block_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    furnish(tmp_path, (ROOT / page).read_text(encoding="utf-8"))
    Reader(tmp_path, instead(tmp_path)).follow(ROOT / page)
