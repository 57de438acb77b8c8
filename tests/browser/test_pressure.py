"""The page of a server that has too little memory, as an operator reads it, in a real browser."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.live_server import LiveServer, live_server

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

TIGHT = {"num_blocks": 40, "num_host_blocks": 60, "max_num_seqs": 4}
WIDTHS = (390, 900, 1440)
MOMENT = """() => {
  const text = (selector) => document.querySelector(selector).textContent;
  const blocks = (kind) => Number(text(`[data-kind=${kind}] b`));
  return { free: blocks("cached") + blocks("free"), held: text(".figures div:nth-child(2) dd"),
    bar: Number(text(".bar-row b")), why: text(".memory-said"), status: text("#status") };
}"""
# Cells that something else lies on, or that say why and are not whole in sight.
COVERED = """() => [...document.querySelectorAll(".requests td")].flatMap((cell) => {
  if (!cell.checkVisibility() || !cell.textContent) return [];
  cell.scrollIntoView({ block: "center" });
  const { left, right, top, bottom } = cell.firstElementChild.getBoundingClientRect();
  const { left: from, right: to } = cell.closest(".scroll").getBoundingClientRect();
  const why = cell.classList.contains("wide") && (left < from - 1 || right > to + 1);
  const points = [left + 1, (left + right) / 2, right - 2].filter((x) => (
    x > from && x < to && x < innerWidth));
  const free = points.every((x) => cell.contains(document.elementFromPoint(x, (top + bottom) / 2)));
  const cut = cell.checkVisibility() && right > to + 1; // "971 m" for 971 ms
  return why || !free || cut ? [`${cell.dataset.title}: ${cell.textContent}`] : [];
})"""


def start(server: LiveServer, threads: ThreadPoolExecutor, count: int) -> list[Any]:
    """So many requests, on an engine that stands still in a step."""
    server.executor.hold()
    body = {"max_tokens": 60, "ignore_eos": True}
    asked = [
        threads.submit(server.complete, prompt=f"tell me of {number}", **body)
        for number in range(count)
    ]
    server.step_until(lambda: len(server.engine._requests) == count)
    return asked


def test_map_figures_legend_and_reasons_are_of_one_moment(page: sync_api.Page) -> None:
    with live_server(TIGHT) as server, ThreadPoolExecutor(6) as threads:
        page.goto(server.url)
        expect(page.locator("#model")).to_have_text("demo")
        asked, reasons, preempted = start(server, threads, 6), set[str](), set[str]()

        def compared() -> bool:
            seen = page.evaluate(MOMENT)
            if "running" in seen["status"] and " 0 running" not in seen["status"]:
                assert seen["held"] == f"{seen['bar']} of 40" == f"{40 - seen['free']} of 40"
            if found := re.search(r"needs (\d+) blocks?, (\d+) cached or free", seen["why"]):
                assert int(found[2]) == seen["free"]
                reasons.add(seen["why"])
            preempted.update(re.findall(r"\d+ preempted", seen["status"]))
            return len(reasons) >= 3 and bool(preempted)

        server.step_until(compared)
        assert any("--kv-cache-memory-bytes: room for " in why for why in reasons)
        server.executor.release()
        assert {one.result().status_code for one in asked} == {200}


def test_what_is_old_says_so(page: sync_api.Page) -> None:
    page.clock.install()
    status = page.locator("#status")
    with live_server(TIGHT) as server, ThreadPoolExecutor(1) as threads:
        for view in ("memory", "requests"):
            page.goto("about:blank")
            page.goto(f"{server.url}/#{view}")
            expect(status).to_contain_text("step ")
            (asked,) = start(server, threads, 1)
            page.clock.fast_forward(
                70_000
            )  # a long step: between two of them alone an engine answers
            expect(status).to_contain_text(re.compile(r" · [1-9]:\d\d old"))
            server.executor.release()
            expect(status).not_to_contain_text("old")
            assert asked.result().status_code == 200


def test_figures_stay_with_the_map_when_the_server_is_gone(page: sync_api.Page) -> None:
    status = page.locator("#status")
    with live_server() as server:
        page.goto(server.url)
        expect(status).to_contain_text("step 0")
        page.route("**/v1/quire/state", lambda route: route.abort())  # the last is of step 0
        server.complete(prompt="hello", max_tokens=4)
        expect(status).to_have_text(re.compile(r"step [1-9].* 0 running"))
    page.unroute("**/v1/quire/state")
    expect(page.locator("#lost")).to_contain_text("No answer from the server")
    expect(status).to_contain_text(" old")
    assert re.match("step [1-9]", status.inner_text())


def test_why_somebody_waits_is_never_covered(page: sync_api.Page) -> None:
    with live_server(TIGHT) as server, ThreadPoolExecutor(6) as threads:
        asked = start(server, threads, 6)
        scheduler, covered = server.engine.scheduler, list[tuple[int, str]]()
        server.step_until(lambda: any(group.begun for group in scheduler.waiting))
        page.goto(f"{server.url}/#requests")
        server.answer_until(lambda: page.locator(".requests td.wide").count() > 2)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            covered += [(width, cell) for cell in page.evaluate(COVERED)]
        server.executor.release()
        assert {one.result().status_code for one in asked} == {200}
        assert not covered
