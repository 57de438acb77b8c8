"""The documentation as a site: nothing that a page refers to is missing, none is endless, and all
can be read on a phone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.pages import DOCS, ROOT

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("zensical", reason="zensical is not installed")
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="Quire runs without its docs")

TALLEST = 8000  # pixels, where a window is 1,440 wide
ONE_SCREEN = 900  # where why.html ends, but for the site's footer
_LOOK = """() => ({
    height: document.documentElement.scrollHeight,
    end: Math.max(...[...document.querySelectorAll("article > *")].map(
        one => one.getBoundingClientRect().bottom)),
    missing: [...document.images].filter(one => !one.naturalWidth).map(one => one.src),
    links: [...document.querySelectorAll("a[href], link[href]")].map(one => one.href),
    ids: [...document.querySelectorAll("[id]")].map(one => one.id),
})"""

_SQUEEZED = """() => [...document.querySelectorAll("td")].filter(cell => {
    const {width, height} = cell.getBoundingClientRect();
    return width < 200 && height > 400;
}).map(cell => cell.textContent)"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the names of its pages."""
    from scripts import site_pages

    folder: Path = tmp_path_factory.mktemp("site")
    site_pages.write(folder / "build/pages")
    (folder / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text("utf-8"), "utf-8")
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = folder / "build/site"
    names = [str(page.relative_to(built)) for page in built.rglob("*.html")]
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(built))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", sorted(names)
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_all_pictures_and_links_lead_somewhere_and_no_page_is_endless(
    site: tuple[str, list[str]], page: sync_api.Page
) -> None:
    url, names = site
    page.route("**/*.js", lambda script: script.abort())  # twice as fast, and as high
    found, squeezed = {}, {}
    for name in names:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(url + name)
        found[url + name] = page.evaluate(_LOOK)
        page.set_viewport_size({"width": 390, "height": 844})
        if cells := page.evaluate(_SQUEEZED):
            squeezed[name] = cells
    assert squeezed == {}
    assert {name: one["missing"] for name, one in found.items() if one["missing"]} == {}
    assert {name: one["height"] for name, one in found.items() if one["height"] > TALLEST} == {}
    assert found[f"{url}why.html"]["end"] <= ONE_SCREEN
    linked = {
        name: {link.partition("#")[0] for link in one["links"]} - {name}
        for name, one in found.items()
    }
    assert found.keys() - set().union(*linked.values()) == {f"{url}404.html"}
    for name, one in found.items():
        for link in {link for link in one["links"] if link.startswith(url)}:
            target, _, anchor = link.partition("#")
            if target in found:
                assert not anchor or anchor in found[target]["ids"], f"{name}: {link}"
            else:
                assert page.request.get(target).ok, f"{name}: {link}"
