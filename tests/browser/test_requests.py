"""The views of requests, of time and of what else is on, in a real browser."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.live_server import LiveServer, live_server

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

TIGHT = {"num_blocks": 40, "num_host_blocks": 60, "max_num_seqs": 4}
ROWS = """() => Object.fromEntries([...document.querySelectorAll(".requests section")]
  .filter((section) => !section.hidden && section.querySelector(".things"))
  .map((section) => [section.querySelector("h2").textContent.toLowerCase(),
    [...section.querySelectorAll("tbody tr")].map((row) => Object.fromEntries([...row.children]
      .filter((cell) => !cell.hidden).map((cell) => [cell.dataset.title, cell.textContent])))]))"""


def start(server: LiveServer, threads: ThreadPoolExecutor, count: int, **body: Any) -> list[Any]:
    server.executor.hold()
    asked: list[Future[httpx.Response]] = []
    for number in range(count):
        body = {"max_tokens": 60, "ignore_eos": True, **body, "prompt": f"tell me of {number}"}
        asked.append(threads.submit(server.complete, **body))
    server.step_until(lambda: len(server.engine._requests) == count)
    return asked


def test_rows_are_what_the_scheduler_says(page: sync_api.Page) -> None:
    with live_server(TIGHT) as server, ThreadPoolExecutor(6) as threads:
        asked = start(server, threads, 6)
        scheduler, seen = server.engine.scheduler, {*server.engine._requests}
        server.step_until(lambda: any(group.begun for group in scheduler.waiting))
        page.goto(f"{server.url}/#requests")
        server.answer_until(lambda: bool(page.evaluate(ROWS).get("preempted")))
        rows = page.evaluate(ROWS)
        names = [row["Request"] for found in rows.values() for row in found]
        assert len(names) == len(set(names)) and set(names) <= seen
        assert "swap" in {row["By"] for row in rows["preempted"]}
        assert "free" in rows["waiting"][0]["Why"] and "behind" in rows["waiting"][-1]["Why"]
        server.executor.release()
        assert {one.result().status_code for one in asked} == {200}


def test_a_row_is_opened_and_its_request_ended_by_keyboard(page: sync_api.Page) -> None:
    with live_server({"num_blocks": 256}) as server, ThreadPoolExecutor(2) as threads:
        asked = start(server, threads, 2, n=2, max_tokens=200)
        _, second = server.engine._requests
        page.goto(f"{server.url}/#requests")
        rows = page.locator(".chooses")
        server.answer_until(lambda: rows.count() == 2)
        rows.first.press("ArrowDown")
        page.keyboard.press("Enter")
        panel = page.locator(".request-panel")
        server.answer_until(lambda: panel.locator(".cells").count() == 2)  # a table a branch
        expect(panel.locator("h2")).to_have_text(second)
        shared = panel.locator(".cells .shared").all_inner_texts()
        assert shared and all(text[-2:] in ("×2", "×4") for text in shared)
        assert panel.locator(".timeline li b").all_inner_texts()[-1] == "admit"
        panel.get_by_role("button", name=f"end request {second}").press("Enter")
        expect(page.get_by_role("button", name="Let it run")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        server.answer_until(lambda: any(one.done() for one in asked))
        ended, other = sorted(asked, key=lambda one: not one.done())  # who came first may be either
        assert ended.result().status_code == 410
        server.answer_until(lambda: rows.count() == 1)
        server.answer_until(lambda: "has ended" in panel.inner_text())
        server.executor.release()
        assert other.result().status_code == 200


def test_of_a_thousand_a_hundred_are_listed_and_the_others_counted(page: sync_api.Page) -> None:
    with live_server() as server, ThreadPoolExecutor(2) as threads:
        (asked,) = start(server, threads, 1)
        answer = threads.submit(server.http.get, "/v1/quire/state")
        server.answer_until(answer.done)
        server.executor.release()
        assert asked.result().status_code == 200
        state = answer.result().json()
        (row,) = state["requests"]["running"]
        rows = [{**row, "id": f"request-{number}"} for number in range(100)]
        state["requests"] |= {"num_running": 973, "running": rows}
        page.route("**/v1/quire/state", lambda route: route.fulfill(json=state))
        page.goto(f"{server.url}/#requests")
        listed = page.locator("section", has=page.get_by_role("heading", name="Running"))
        expect(listed).to_contain_text("and 873 more")
        expect(listed.locator("tbody tr")).to_have_count(100)
        page.get_by_role("searchbox").fill("request-99")
        expect(listed.locator("tbody tr")).to_have_count(1)
        gone = {"error": {"message": "the engine has ended"}}
        page.route("**/v1/quire/state", lambda route: route.fulfill(status=503, json=gone))
        told = "The server answers with an error; trying again (the engine has ended)"
        expect(page.locator("#lost")).to_contain_text(told)
        page.unroute_all(behavior="ignoreErrors")


def test_what_is_on_is_told_and_charts_are_read_by_keyboard(page: sync_api.Page) -> None:
    with live_server() as server:
        opened = server.http.post("/v1/sessions", json={"model": "demo"}).json()
        page.goto(f"{server.url}/#more")
        expect(page.locator(".more .things").nth(1)).to_contain_text(opened["id"])
        expect(page.locator(".more")).to_contain_text("Off: --kv-store")
        page.goto(f"{server.url}/#time")
        server.complete(prompt="hello", max_tokens=8, ignore_eos=True)
        plots = page.get_by_role("slider")
        expect(plots.first).to_be_visible()
        expect(plots.first).to_have_attribute("aria-valuemax", "1")
        plots.first.press("Home")
        moment = plots.first.get_attribute("aria-valuetext") or ""
        assert moment.partition(",")[0] in page.locator(".chart-when").nth(1).inner_text()
        page.get_by_text("table", exact=True).first.click()
        table = page.locator(".chart table").first
        assert table.locator("thead th").all_inner_texts() == ["time", "out", "in"]
        assert table.locator("tbody tr").count() >= 2
        (before, *_) = server.http.get("/v1/quire/history").json()["data"]
        page.reload()
        expect(plots.first).to_be_visible()
        at = page.evaluate("at => new Date(1e3 * at).toLocaleTimeString('en-GB')", before["time"])
        plots.first.press("Home")  # what has been before anybody looked
        expect(plots.first).to_have_attribute("aria-valuetext", re.compile(f"^{at}"))
