"""A browser, where there is one, and pages in it that are looked after."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire.http.page
from support.live_server import PATIENCE

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="package")
def chromium() -> Iterator[sync_api.Browser]:
    """No longer than it is used: playwright has an event loop in this thread till then."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is in PATH")
    with sync_api.sync_playwright() as play:
        sync_api.expect.set_options(timeout=1e3 * PATIENCE)
        browser = play.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: sync_api.Browser) -> Iterator[sync_api.Page]:
    """A page in which no script fails, which its policy has to refuse nothing, and which asks no
    other host. Tests may import its modules one by one, from /modules/."""
    page = chromium.new_page()
    page.route("**/modules/**", _module)
    page.set_default_timeout(1e3 * PATIENCE)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if _refused(said.text) else None)
    page.on("request", lambda one: wrong.append(one.url) if _elsewhere(one.url) else None)
    yield page
    page.close()
    assert not wrong


def _module(route: sync_api.Route) -> None:
    """The server has them as one."""
    name = route.request.url.partition("/modules/")[2]
    route.fulfill(path=Path(quire.http.page.__path__[0]) / name, content_type="text/javascript")


def _refused(text: str) -> bool:
    return "Content Security Policy" in text


def _elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))
