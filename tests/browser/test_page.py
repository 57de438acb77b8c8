"""The page in a real browser, with a real server."""

from __future__ import annotations

import base64
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lives.script import draw

from quire.core.scheduling import Scheduler
from quire.engine.dashboard import BlockState, Cell, number_of
from quire.http.guards.keys import COOKIE
from quire.http.live import watching
from quire.http.live.state import BlockStory, StateReader
from quire.http.live.watching import BlockLook, Frames
from support.accessible import violations
from support.block_truth import Frame, true_cells, true_holders
from support.live_server import LiveServer, eventually, live_server
from support.watched_runs import Watched

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

KEY, SECRET = "a-key-of-the-operator's", "zebra"
VIEWS = ("memory", "requests", "time", "chat", "more")
SMALL = {"num_blocks": 40, "max_num_seqs": 8}
SHOWN = """() => {
  const view = document.querySelector(".memory"), pixels = [], counts = {};
  for (const canvas of view.querySelectorAll("canvas")) {
    const { width, height } = canvas;
    const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    pixels.push(...new Uint32Array(data.buffer).filter((pixel) => pixel !== 0)); // a row's rest
  }
  for (const button of view.querySelectorAll("[data-kind]")) {
    counts[button.dataset.kind] = Number(button.querySelector("b").textContent);
  }
  return { frame: view.dataset.frame, pixels, counts };
}"""
TWO_GROUPS = """const plain = fetch;
window.fetch = async (path, ...rest) => {
  const answer = await plain(path, ...rest);
  if (!String(path).startsWith("v1/quire/state")) return answer;
  await new Promise((resolve) => setTimeout(resolve, 300)); // blocks are there before
  const state = await answer.json();
  state.pool.kv_groups = [
    { first_block: 0, num_blocks: 25, window: null, layers: 3, draft_layers: 1 },
    { first_block: 25, num_blocks: 15, window: 8, layers: 0, draft_layers: 2 }];
  return new Response(JSON.stringify(state));
};"""
READ = """async (frames) => {
  const { BlockMap, fromBase64 } = await import("/modules/blocks.js");
  const blocks = new BlockMap();
  return frames.map((frame) => {
    const changed = blocks.apply(fromBase64(frame));
    return { changed: changed && [...changed], cells: [...blocks.states].map((state, i) =>
      [state, blocks.owners[i], blocks.shared[i], blocks.found[i]]) };
  });
}"""


def kind(cell: Cell) -> str:
    """What the page calls it."""
    if cell.state >= BlockState.USED and cell.shared > 1:
        return "shared"
    return {BlockState.SINK: "sinks"}.get(
        BlockState(cell.state), BlockState(cell.state).name.lower()
    )


def start(server: LiveServer, threads: ThreadPoolExecutor, count: int) -> list[Any]:
    """So many requests, some with a beginning in common, on an engine that stands still."""
    server.executor.hold()
    rng = random.Random(0)
    bodies = [
        {
            "prompt": f"{SECRET} of the same words " * 2 + f"{number} " * rng.randrange(9),
            "max_tokens": 40,
            "ignore_eos": True,
            "n": 1 + number % 2,
        }
        for number in range(count)
    ]
    return [threads.submit(server.complete, **body) for body in bodies]


def test_the_page_shows_what_the_engine_says(
    page: sync_api.Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    truths: dict[str, list[Cell]] = {}
    look = BlockLook._look

    def spied(self: BlockLook, *, whole: bool) -> Frames | None:
        frames = look(self, whole=whole)
        truths[str(self._number)] = true_cells(self._engine.engine.scheduler)
        return frames

    asked_of: dict[int, list[list[str]]] = defaultdict(list)
    read = StateReader.block

    def spied_block(reader: StateReader, block: int) -> BlockStory:
        asked_of[block] += lines(reader._engine.scheduler, block)
        return read(reader, block)

    monkeypatch.setattr(StateReader, "block", spied_block)
    monkeypatch.setattr(BlockLook, "_look", spied)
    monkeypatch.setattr(watching, "_EVERY", 0.01)
    with live_server(SMALL) as server, ThreadPoolExecutor(8) as threads:
        page.goto(server.url)
        expect(page.locator("#model")).to_have_text("demo")
        asked = start(server, threads, 6)
        seen = set[str]()
        scheduler = server.engine.scheduler

        def compared() -> bool:
            shown = page.evaluate(SHOWN)
            check(shown, truths[shown["frame"]])
            seen.update(name for name, count in shown["counts"].items() if count)
            return {"used", "shared", "free"} <= seen and bool(scheduler.waiting)

        server.step_until(compared)
        monkeypatch.setattr(watching, "_EVERY", 0.5)  # a frame is a step: they are not to run out
        page.locator(".map").focus()
        page.keyboard.press("End")
        title, holders = page.locator(".inspector h3"), page.locator(".inspector .holders li")
        expect(title).to_contain_text("Block 39")
        while not holders.count():  # on to a block that somebody holds
            page.keyboard.press("ArrowLeft")
        server.answer_until(lambda: any("tokens" in told for told in holders.all_inner_texts()))
        block = int(title.inner_text().split()[1])
        assert holders.first.inner_text().splitlines() in asked_of[block]
        page.keyboard.press("Enter")
        server.answer_until(lambda: page.locator(".only").is_visible())
        shown = page.evaluate(SHOWN)
        number = int(page.locator(".memory").get_attribute("data-selected"))
        check_selected(number, shown["pixels"], truths[shown["frame"]])
        server.executor.release()
        assert {one.result().status_code for one in asked} == {200}
    assert SECRET not in page.content()


def lines(scheduler: Scheduler, block: int) -> list[list[str]]:
    """What may be told of who holds a block."""
    groups = {number_of(group): group for group in scheduler.running}
    told = []
    for number, branch, first, end in true_holders(scheduler, block):
        group = groups[number]
        many = len(group.branches)
        tokens = scheduler.allocator.num_tokens(
            next(one.seq_id for one in group.branches if one.index == branch)
        )
        of_branches = f", branch {branch + 1} of {many}" if many > 1 else ""
        told.append(
            [
                group.request.request_id,
                f"number {number}, running{of_branches}",
                f"tokens {first}–{end - 1} of {tokens}",
            ]
        )
    return told


def check(shown: dict[str, Any], truth: list[Cell]) -> None:
    """Each cell has its kind's colour, and the legend counts them."""
    kinds = [kind(cell) for cell in truth]
    assert {name: count for name, count in shown["counts"].items() if count} == {
        name: kinds.count(name) for name in kinds
    }
    colours: dict[int, str] = {}
    for cell, name, pixel in zip(truth, kinds, shown["pixels"], strict=True):
        assert colours.setdefault(pixel, name) == name, cell
    if "shared" not in kinds:
        assert len(colours) == len(set(kinds))


def check_selected(number: int, pixels: list[int], truth: list[Cell]) -> None:
    """What it holds is in colours that nobody else's blocks have."""
    own, others = set(), set()
    for cell, pixel in zip(truth, pixels, strict=True):
        if cell.owner == number:
            own.add(pixel)
        elif cell.shared <= 1:  # it may be one of several
            others.add(pixel)
    assert own and others and not own & others


def test_layers_with_a_window_have_a_map_of_their_own(page: sync_api.Page) -> None:
    page.add_init_script(TWO_GROUPS)
    with live_server(SMALL) as server:
        server.complete(prompt="some words " * 9, max_tokens=2)
        page.goto(server.url)
        expect(page.locator(".maps h3")).to_have_text(
            [
                "Layers that see everything, 1 of 4 of the draft model",
                "Layers with a window of 8 tokens, all of the draft model",
            ]
        )
        check(page.evaluate(SHOWN), true_cells(server.engine.scheduler))
        labels = page.locator(".map").evaluate_all("all => all.map((one) => one.ariaLabel)")
        assert [label.split(".")[0].rpartition(": ")[2] for label in labels] == [
            "25 blocks",
            "15 blocks",
        ]
        page.goto(f"{server.url}/#more")
        told = page.get_by_role("region", name="KV groups").locator("td[data-title$=ayers]")
        expect(told).to_have_text(["3", "1", "0", "2"])


def test_blocks_over_random_lives_are_the_same_in_the_browser(page: sync_api.Page) -> None:
    page.goto("http://127.0.0.1:8080/modules/blocks.js")  # a place to import it from; no server's
    for seed in (1, 3):
        run = Watched(draw(seed))
        run.go()
        frames = [base64.b64encode(data).decode() for data, _ in run.frames]
        told = page.evaluate(READ, frames)
        before: list[Cell] = []
        for one, (data, truth) in zip(told, run.frames, strict=True):
            assert [Cell(*cell) for cell in one["cells"]] == truth
            named = Frame(data).blocks
            assert one["changed"] == (None if named is None else list(named))
            if named is not None:  # some may have changed, and changed back since
                pairs = zip(before, truth, strict=True)
                differ = {block for block, pair in enumerate(pairs) if pair[0] != pair[1]}
                assert differ <= set(named)
            before = truth


def test_who_has_no_key_sees_the_login_and_nothing_else(page: sync_api.Page) -> None:
    with live_server(api_key=[KEY]) as server:
        page.goto(server.url)
        login = page.locator("#login")
        expect(login).to_be_visible()
        assert page.locator("#model").inner_text() == ""
        page.get_by_role("textbox", name="API key").fill("another")
        page.get_by_role("button", name="Log in").click()
        expect(login.get_by_role("alert")).to_have_text("The server does not know this key.")
        page.get_by_role("textbox", name="API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(login).to_be_hidden()
        expect(page.locator("#model")).to_have_text("demo")
        kept = page.evaluate("[document.cookie, {...localStorage}, {...sessionStorage}]")
        assert kept == ["", {}, {}] and KEY not in page.content() + page.url
        page.context.clear_cookies(name=COOKIE)  # as if its time were over
        expect(login).to_be_visible()


def test_a_server_that_comes_back_is_found(page: sync_api.Page) -> None:
    status, lost = page.locator("#status"), page.locator("#lost")
    with live_server() as server:
        port = server.server.port
        server.complete(prompt="hello", max_tokens=4)
        page.goto(server.url)
        expect(status).to_contain_text("step ")
    expect(lost).to_contain_text("No answer from the server")
    with live_server({"num_blocks": 7}, port=port):
        expect(status).to_contain_text("step 0")
        expect(lost).to_be_empty()
        expect(page.locator(".memory .figures")).to_contain_text("0 of 7")


def test_nothing_is_in_the_way_of_anybody(chromium: sync_api.Browser) -> None:
    with (
        live_server(SMALL) as server,
        ThreadPoolExecutor(8) as threads,
        chromium.new_page(bypass_csp=True, reduced_motion="reduce") as page,
    ):
        asked, wrong = start(server, threads, 6), list[str]()
        scheduler = server.engine.scheduler
        server.step_until(lambda: bool(scheduler.waiting))
        page.goto(server.url)
        server.answer_until(lambda: page.locator("#model").inner_text() == "demo")
        for view in VIEWS:
            page.goto(f"{server.url}/#{view}")
            expect(page.locator("[aria-current=page]")).to_have_attribute("href", f"#{view}")
            if view == "requests":
                page.locator(".chooses").last.click()  # of those that wait
            if view == "memory":
                page.locator(".map").focus()
                page.keyboard.press("Enter")
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 800})
                wrong += violations(page, f"{view}, {width}")
        server.executor.release()
        assert not wrong, "\n".join(wrong)
        assert {one.result().status_code for one in asked} == {200}


def test_no_text_is_told(page: sync_api.Page) -> None:
    bodies: list[str] = []
    page.on("response", lambda answer: _keep(bodies, answer))
    with live_server(SMALL) as server, ThreadPoolExecutor(8) as threads:
        asked = start(server, threads, 6)
        page.goto(server.url)
        for view in VIEWS:
            page.goto(f"{server.url}/#{view}")
            server.answer_until(lambda: "demo" in page.locator("#model").inner_text())
            assert SECRET not in page.content()
        server.executor.release()
        eventually(lambda: all(one.done() for one in asked))
        assert len(bodies) > len(VIEWS) and not any(SECRET in body for body in bodies)


def _keep(bodies: list[str], answer: sync_api.Response) -> None:
    if "stream=true" not in answer.url:  # which never ends
        bodies.append(answer.text())
