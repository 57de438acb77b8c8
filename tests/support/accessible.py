"""What axe-core finds on a page, in light and in dark colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


def violations(page: Page, view: str) -> list[str]:
    """Of the page as it is now, which must allow styles that axe adds (``bypass_csp``)."""
    axe = pytest.importorskip("axe_playwright_python.base")
    page.evaluate(axe.AXE_SCRIPT)
    wrong = []
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate(
            "options => axe.run(options)", {"resultTypes": ["violations"], **rules}
        )
        for one in found["violations"]:
            targets = [node["target"] for node in one["nodes"]]
            wrong.append(f"{view}, {scheme}: {one['id']} of {targets}")
    return wrong
