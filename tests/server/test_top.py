"""``quire top``: what servers say, as a terminal shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from quire.tools.cli import main
from quire.tools.terminal.top_text import View, page
from support.live_server import MODEL, LiveServer, live_server


def shown(views: list[View], width: int, height: int | None, sort: str = "line") -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(page(views, width, height, sort, "keys"))
    return capture.get().splitlines()


def row(name: str, status: str, seconds: float, **more: Any) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("prompt_tokens", "output_tokens", "max_tokens", "blocks", "cached_tokens", "draft_tokens",
         "accepted_tokens", "swaps", "recomputes"), 7,
    )  # fmt: skip
    wait = {"wait": None, "ends_within_seconds": 1.0}
    return {"id": name, "status": status, "seconds": seconds, **figures, **wait, **more}


@pytest.fixture
def state(shared: LiveServer) -> dict[str, Any]:
    state: dict[str, Any] = shared.http.get("/v1/quire/state").json()
    wait = {"text": "no room: needs 12 blocks, 9 free", "needed": 12, "free": 9, "ahead": 0}
    running = [row(f"run-{number}", "running", number) for number in range(20)]
    wait |= {"unit": "blocks", "remedy": "--max-num-seqs: 9 instead of 8"}
    waiting = [row("w\x1b[2Jx", "waiting", 99.0, wait=wait)]
    told = {"num_running": 20, "num_waiting": 1, "running": running, "waiting": waiting}
    state["requests"] |= told
    kinds = dict.fromkeys(("fetched_tokens", "evicted_tokens", "new_tokens"), 0)
    looked_up = {"queried_tokens": 200, "found_tokens": 50, "stateless_tokens": 100}
    state["prefix_cache"] |= kinds | looked_up
    return state


def test_a_page_fits_the_screen_and_is_in_the_order_asked_for(state: dict[str, Any]) -> None:
    views = [View("http://a", state), View("http://b", problem="does not answer: refused")]
    for width, height in ((80, 24), (200, 50), (40, 10)):
        lines = shown(views, width, height)
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert not any("\x1b" in line for line in lines), "names move no cursor"
    text = "\n".join(shown([views[0]], 170, None))
    assert "prompts found 25%, without a snapshot 50%" in text
    assert "needs 12 blocks, 9 free" in text and "20 running" in text and "run-19" in text
    assert "9 free; to admit it now: --max-num-seqs: 9 instead of 8" in "\n".join(
        shown([views[0]], 260, None)
    )
    assert "needs 12, 9 free" in "\n".join(shown([views[0]], 80, None))
    first = next(line for line in shown([views[0]], 80, 24, "age") if "run-" in line)
    assert "run-19" in first and "does not answer: refused" in "\n".join(shown(views, 80, 24))


def test_once_as_text_and_as_json(shared: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", shared.url]) == 0, "this is no terminal"
    assert f"{MODEL} " in capsys.readouterr().out
    assert main(["top", "--json", shared.url, "http://127.0.0.1:9"]) == 1
    there, gone = json.loads(capsys.readouterr().out)
    assert there["state"]["pool"]["num_blocks"] == 128 and there["problem"] is None
    assert gone["state"] is None and "does not answer" in gone["problem"]
    assert main(["top", "--interval", "0", shared.url]) == 1
    assert "interval must be from 0.1" in capsys.readouterr().err


def test_the_key_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys").write_text("the-key\n")
    (tmp_path / "keys").chmod(0o600)
    with live_server(api_key=["the-key"]) as server:
        assert main(["top", server.url, "--once"]) == 1
        assert "asks for an api_key" in capsys.readouterr().out
        assert main(["top", server.url, "--once", "--api-key-file", str(tmp_path / "keys")]) == 0
