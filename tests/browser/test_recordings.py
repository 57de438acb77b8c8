"""Recordings in a real browser: what is shown at a time is what the file has there."""

from __future__ import annotations

import gzip
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from quire.engine.dashboard import Cell
from quire.http.guards.listening import bound
from quire_lab.commands.replay import replay_app
from quire_lab.recorded import Look, MomentRecording
from quire_lab.recording import check, lines
from quire_lab.reports.page import moment_page
from quire_lab.simulation import Simulator
from support.accessible import violations
from support.block_truth import Frame
from support.live_server import PATIENCE, eventually, live_server
from support.recordings import LIMITS, Costs, simulated, workload

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

SECRET, MARKUP = "zebra", "<img src=x onerror=alert(1)>"
# Wherever it is moved to: the state's step and time, decisions, points of history, every block.
SEEK = """async ([address, times]) => {
  const { Recording } = await import("/modules/recording.js");
  const { Replay } = await import("/modules/replay.js");
  const recording = await Recording.read(await (await fetch(address)).blob());
  const told = [], shown = new Set();
  const replay = new Replay({ state() {}, blocks(changed) { told.push(changed); } }, recording);
  replay.history.kept = 5;
  return [recording.keyframes.length, recording.events.length, times.map((t) => {
    const before = [...replay.blocks.owners];
    told.length = 0;
    replay.seek(t);
    const { blocks, state, decisions, history } = replay;
    const missed = told.length && told[0] !== null && before.length === blocks.length
      ? [...blocks.owners].filter((owner, i) => owner !== before[i] && !told[0].includes(i)) : [];
    return { step: state.step, decisions: decisions.map((one) => one.number), missed,
      points: history.points.map((one) => one.step), cells: [...blocks.states].map((one, i) =>
        [one, blocks.owners[i], blocks.shared[i], blocks.found[i]]) };
  })];
}"""

KEPT = """async (model) => {
  const { Recorder } = await import("/modules/parts/recorder.js");
  const recorder = new Recorder({ model, time: 5, version: "" }, () => {});
  recorder.state({ model, time: 6 });
  recorder.story(7, { request: { id: "a" }, prompt: model, outputs: [model] });
  const packed = await recorder.end();
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long enough for blocks to be kept whole in between."""
    path = tmp_path_factory.mktemp("recordings") / "x.quire"
    *requests, _ = workload()
    turns = [replace(one, arrival=one.arrival + 10 * turn) for turn in range(4) for one in requests]
    simulated(path, turns, MARKUP)
    return path


@contextmanager
def replayed(path: Path) -> Iterator[str]:
    with bound("127.0.0.1", 0) as sockets:
        server = uvicorn.Server(uvicorn.Config(replay_app(path), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        try:
            eventually(lambda: server.started)
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def test_every_moment_is_the_files(page: sync_api.Page, path: Path) -> None:
    told = list(lines(path)[1])
    end, rng = told[-1].seconds, random.Random(0)
    times = [rng.uniform(0, end) for _ in range(40)]
    times += [0.0, end, *(line.seconds for line in told[50:300:25])]
    with replayed(path) as url:
        page.goto(url)
        expect(page.locator("#model")).to_have_text(MARKUP)
        keyframes, events, moments = page.evaluate(SEEK, [f"{url}/recording.quire", times])
        assert keyframes > 1 and events
        slider, status = (
            page.get_by_role("slider", name="Time", exact=True),
            page.locator("#status"),
        )
        for time, moment in zip(times, moments, strict=True):
            assert_same(moment, [line for line in told if line.seconds <= time], told)
        for time, moment in list(zip(times, moments, strict=True))[:5]:
            slider.evaluate(
                "(one, at) => { one.value = at; one.dispatchEvent(new Event('input')); }", time
            )
            expect(status).to_contain_text(f"recorded: step {moment['step']:,} ·")
            assert page.locator(".memory").get_attribute("data-frame") == str(frames(told, time))


def test_it_opens_where_there_is_something_to_see(
    page: sync_api.Page, path: Path, tmp_path: Path
) -> None:
    header, *rest = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    state = next({**line, "t": 0} for line in rest if "state" in line)
    late = [{**line, "t": line["t"] + 5} for line in rest if "state" not in line]
    later = {"t": late[-2]["t"], "state": json.loads(json.dumps(state["state"]))}
    later["state"]["time"] += 6
    later["state"]["prefix_cache"]["stateless_tokens"] += 60
    content = "".join(
        json.dumps(line) + "\n" for line in (header, state, *late[:-1], later, late[-1])
    )
    (tmp_path / "late.quire").write_bytes(gzip.compress(content.encode()))
    first = next(line for line in lines(tmp_path / "late.quire")[1] if line.kind == "blocks")
    with replayed(tmp_path / "late.quire") as url:
        page.goto(url)
        expect(page.locator("#replay output")).to_contain_text("0:05 / ")
        assert float(slider_of(page).input_value()) == first.seconds
        number = Frame(first.value).number
        expect(page.locator(".memory")).to_have_attribute("data-frame", str(number))
        expect(page.locator(".memory-said")).to_contain_text("before this map")
        page.get_by_role("link", name="Time").click()
        expect(page.get_by_text("Charts begin with the second moment")).to_be_visible()
        slider_of(page).press("End")
        expect(page.get_by_text("missed: no snapshot 10 tok/s")).to_be_visible()


def test_a_recording_is_in_nobodys_way(chromium: sync_api.Browser, path: Path) -> None:
    with replayed(path) as url, chromium.new_page(bypass_csp=True) as page:
        page.goto(url)
        expect(page.locator("#model")).to_have_text(MARKUP)
        assert not violations(page, "a recording")


def test_a_moment_is_a_page_without_a_server(page: sync_api.Page) -> None:
    simulator = Simulator(LIMITS, Costs())
    kept = MomentRecording(simulator.engine, Look(simulator.engine, MARKUP), 0.3)
    simulator.run(workload())
    assert kept.moment is not None
    page.set_content(moment_page(kept.moment.recording))
    blocks = sum(one.blocks for one in kept.moment.holdings)
    expect(page.locator(".figures dd").nth(1)).to_have_text(f"{blocks} of 40")
    page.get_by_role("application").focus()  # the first block
    page.keyboard.press("Enter")
    (first, *_) = kept.moment.holdings
    expect(page.locator(".holders")).to_contain_text(f"{first.request_id} number 1, running")
    expect(page.locator(".only")).to_have_text(f"only {first.request_id}: {first.blocks} blocks ×")
    expect(page.locator(".slots")).to_have_count(0)


def slider_of(page: sync_api.Page) -> sync_api.Locator:
    return page.get_by_role("slider", name="Time", exact=True)


def frames(told: list[Any], time: float) -> int:
    return sum(line.kind == "blocks" and line.seconds <= time for line in told)


def assert_same(moment: dict[str, Any], until: list[Any], told: list[Any]) -> None:
    states = [line.value for line in until if line.kind == "state"]
    shown = states or [next(line.value for line in told if line.kind == "state")]
    assert moment["step"] == shown[-1]["step"]
    points = [state["step"] for state in shown if state["time"] > shown[-1]["time"] - 5]
    assert moment["points"] == points
    numbers = [one["number"] for line in until if line.kind == "decisions" for one in line.value]
    assert not states or moment["decisions"][-50:] == numbers[-50:]
    cells: list[Cell] = []
    for line in until:
        if line.kind == "blocks":
            cells = Frame(line.value).apply(cells)
    assert [Cell(*cell) for cell in moment["cells"]] == cells
    assert moment["missed"] == []


def test_the_bar_goes_by_keys_and_by_events(page: sync_api.Page, path: Path) -> None:
    with replayed(path) as url:
        page.goto(url)
        slider, time = (
            page.get_by_role("slider", name="Time", exact=True),
            page.locator("#replay output"),
        )
        expect(time).to_contain_text("0:01 / ")  # of the first state
        expect(page.get_by_role("button", name="Back to live")).to_be_hidden()
        slider.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        expect(time).to_contain_text("0:04 / ")
        page.keyboard.press("PageUp")
        expect(time).to_contain_text("0:14 / ")
        page.get_by_role("button", name="preemption or refusal before").click()
        events = [
            one["time"]
            for line in lines(path)[1]
            if line.kind == "decisions"
            for one in line.value
            if one["what"] in ("swap", "recompute")
        ]
        before = max(one for one in events if one < 14)
        assert float(slider.input_value()) == pytest.approx(before, abs=0.001)
        page.get_by_label("Speed").select_option("16")
        slider.focus()
        page.keyboard.press("PageUp")
        page.keyboard.press("PageUp")
        page.keyboard.press(" ")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.get_by_role("button", name="Play")).to_be_visible()  # at its end
        assert float(slider.input_value()) == pytest.approx(check(path).seconds)
        page.goto(f"{url}/#requests")
        expect(page.locator("#view")).to_contain_text("Running")
        page.goto(f"{url}/#time")  # a simulation's, which begins at 0
        expect(page.locator(".chart-moments").first.locator("span")).to_have_text(
            ["0:00", "0:15", "0:30"]
        )
        page.get_by_role("slider", name="Throughput").press("Home")
        expect(page.locator(".chart-when").first).to_have_text("0:01")
        expect(page.get_by_role("region", name="preemptions").locator("td").first).to_have_text(
            re.compile(r"^0:\d\d$")
        )
        page.goto(f"{url}/#chat")
        expect(page.get_by_role("button", name="Send")).to_be_disabled()


HEAD = {"quire": "recording", "format": 1, "model": "m", "begun": 0}
HOSTILE = [
    (b"no gzip", "this is not a recording"),
    (gzip.compress(b"{}\n"), "line 1: this is not a recording"),
    (gzip.compress(json.dumps({**HEAD, "format": 2}).encode() + b"\n"), "format 1, not 2"),
    *(
        (gzip.compress(f"{json.dumps(HEAD)}\n{line}\n".encode()), f"line 2: {message}")
        for line, message in (
            ("{", "it is not JSON"),
            ('{"t": 1e9, "state": {}}', "its time must be one"),
            ('{"t": 1, "state": {"pool": null}}', "it holds nothing that a recording has"),
            ('{"t": 1, "blocks": "UUIB"}', "it holds no frame of blocks"),
            (json.dumps({"t": 1, "html": MARKUP}), "it holds nothing"),
        )
    ),
]


def _is_stream(request: sync_api.Request) -> bool:
    return "stream=true" in request.url


def test_a_live_page_records_and_looks_back(page: sync_api.Page, tmp_path: Path) -> None:
    page.clock.install()
    with live_server() as server:
        page.goto(server.url)
        expect(page.locator("#status")).to_contain_text("step 0")
        kept = page.evaluate(KEPT, f"/home/{SECRET}/tiny")
        assert '"model":"tiny"' in kept and '"t":2' in kept and SECRET not in kept
        page.get_by_role("button", name="Record").click()
        server.complete(prompt=f"{SECRET} " * 9, max_tokens=20, ignore_eos=True)
        expect(page.locator("#status")).to_contain_text(re.compile("step [1-9]"))
        with page.expect_download() as download:
            page.get_by_role("button", name="Stop and save").click()
        path = tmp_path / "x.quire"
        download.value.save_as(path)
        told = check(path)
        assert not told.cut and told.num_blocks == 128 and told.counts["state"]
        assert download.value.suggested_filename.startswith("demo-")
        assert SECRET not in gzip.decompress(path.read_bytes()).decode()
        chosen = page.locator("#tools input[type=file]")
        for content, message in HOSTILE:
            broken = {"name": "x.quire", "mimeType": "", "buffer": content}
            chosen.set_input_files(broken)  # type: ignore[arg-type]
            expect(page.locator("#replay p")).to_contain_text(message)
        with page.expect_event("requestfailed", _is_stream):  # nobody is asked beneath it
            chosen.set_input_files(path)
        expect(page.locator("#status")).to_contain_text("recorded: step")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(5000)
        expect(page.locator("#status")).to_contain_text("recorded: step")
        assert asked == []
        page.get_by_role("button", name="Back to live").click()
        expect(page.locator("#replay")).to_be_hidden()
        expect(page.locator("#status")).to_contain_text("step")
        expect(page.locator("#status")).not_to_contain_text("recorded")
