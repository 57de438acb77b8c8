"""Makes the pictures of the page in docs/images, from simulations' recordings.

    python scripts/pictures.py

Needs Chromium in PATH and playwright (``pip install playwright``; no browser of its own).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn
from playwright.sync_api import Page, sync_playwright

from quire.http.guards.listening import bound
from quire_lab.commands.replay import replay_app
from quire_lab.recording import lines

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1280, "height": 820}
MOST_BYTES = 150_000
ENGINE = ["llama-3-8b", "--machine", "h100", "--seed", "7", "--max-num-seqs", "64"]


class Scene(NamedTuple):
    """workload: options of ``quire simulate``. most: of what there is most when it is shown.

    block: that is looked at. by_request: how blocks are coloured.
    """

    name: str
    workload: str
    most: str
    block: int
    by_request: bool = False
    view: str = "memory"


PRESSURE = (
    "--kv-cache-memory-bytes 1600M --swap-space 1 --preemption-mode swap --requests 200 "
    "--rate 12 --input 100-1500 --output 100-400"
)
BEAMS = (
    "--kv-cache-memory-bytes 1200M --requests 40 --rate 2 --input 300-900 --output 200-300 "
    "--n 4 --beam-search"
)
PREFIX = (
    "--kv-cache-memory-bytes 1200M --requests 200 --rate 9 --input 100-300 --output 100-200 "
    "--shared-prefix 1200"
)
SCENES = [
    Scene("page-pressure", PRESSURE, "num_waiting", 300),
    Scene("page-requests", PRESSURE, "num_preempted", 300, view="requests"),
    Scene("page-beams", BEAMS, "num_running", 100, by_request=True),
    Scene("page-prefix", PREFIX, "num_running", 20),
]


def main() -> None:
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is in PATH")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scene in SCENES:
            path = Path(folder) / f"{scene.name}.quire"
            command = [sys.executable, "-m", "quire", "simulate", *ENGINE, "--page-out", str(path)]
            subprocess.run([*command, *scene.workload.split()], check=True, capture_output=True)
            with served(path) as url, browser.new_page(viewport=SIZE) as page:
                image = IMAGES / f"{scene.name}.png"
                page.goto(f"{url}/#{scene.view}")
                show(page, scene, moment(path, scene.most))
                page.screenshot(path=image)
            print(f"{image}: {image.stat().st_size:,} bytes")
            assert image.stat().st_size <= MOST_BYTES, "too large for a repository"


def moment(recording: Path, most: str) -> float:
    """Seconds: the first time when there is most of it."""
    states = [line for line in lines(recording)[1] if line.kind == "state"]
    return max(states, key=lambda line: (line.value["requests"][most], -line.seconds)).seconds


def show(page: Page, scene: Scene, at: float) -> None:
    """Go where the scene is."""
    slider = page.get_by_role("slider", name="Time", exact=True)
    slider.evaluate("(one, at) => { one.value = at; one.dispatchEvent(new Event('input')); }", at)
    if scene.view != "memory":
        return
    if scene.by_request:
        page.get_by_text("by request", exact=True).click()
    page.locator(".map").focus()
    page.keyboard.press("Home")
    for _ in range(scene.block):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)


@contextmanager
def served(recording: Path) -> Iterator[str]:
    """The page over it."""
    with bound("127.0.0.1", 0) as sockets:
        config = uvicorn.Config(replay_app(recording), log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
