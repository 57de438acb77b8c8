"""What /v1/quire tells of a running engine, beside what the engine knows itself."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from quire.core.errors import EngineError
from quire.core.memory import PagedAllocator
from quire.core.protocol import Parts, Step
from quire.core.scheduling import BatchLimits, Scheduler
from quire.engine.dashboard import Cell
from quire.engine.events import Events
from quire.engine.progress import taken
from quire.engine.stats import History
from quire.http.errors import TooManyWatchersError, UnknownRequestError
from quire.http.live import routes, watching
from quire.http.live.state import DecisionList, EngineState, MomentList, RequestStory, StateReader
from quire.http.live.watching import BlockLook, BlockWatch, BlockWatcher, Frames
from support.block_truth import Frame, true_cells
from support.described import as_described
from support.live_server import MODEL, PATIENCE, LiveServer, eventually, live_server

SECRET = "zebra"
PATHS = ("state", "history", "decisions", "blocks", "blocks?stream=true", "requests/x")
SMALL = {"num_blocks": 24, "max_num_seqs": 8}


def ask(server: LiveServer, path: str, **params: Any) -> httpx.Response:
    """An answer from between two steps of a held engine."""
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(server.http.get, f"/v1/quire/{path}", params=params)
        server.step_until(asked.done)
        return asked.result()


def get(server: LiveServer, path: str, kind: type[Any], **params: Any) -> Any:
    """What it holds, if it is of that kind and tells no text."""
    answer = ask(server, path, **params)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text and "/quire/demo" not in answer.text
    return as_described(kind, answer.content)


@contextmanager
def busy(server: LiveServer, count: int, **body: Any) -> Iterator[None]:
    """So many requests have come, and the engine stands still in a step."""
    server.executor.hold()
    with ThreadPoolExecutor(count) as threads:
        futures = []
        for number in range(count):
            prompt = f"{SECRET} {number} " * 3
            futures.append(threads.submit(server.complete, prompt=prompt, **body))
        eventually(lambda: len(server.engine._requests) == count or server.executor.let(1))
        yield
        server.executor.release()
        assert [one.result(PATIENCE).status_code for one in futures] == [200] * count


def test_a_busy_servers_state_is_what_its_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    truths: dict[int, dict[str, Any]] = {}
    read = StateReader.state

    def spied(reader: StateReader, limit: int) -> EngineState:
        scheduler = reader._engine.scheduler
        truths[reader._engine.stats.num_steps] = {
            "slots": scheduler.allocator.usage()._asdict(),
            "cells": true_cells(scheduler),
            "running": [group.request.request_id for group in scheduler.running],
            "blocks": [scheduler.allocator.blocks_held(g.tables())[0] for g in scheduler.running],
            "output": [len(group.branches[0].token_ids) for group in scheduler.running],
            "line": [group.request.request_id for group in scheduler.waiting],
            "begun": [group.request.request_id for group in scheduler.waiting if group.begun],
        }
        return read(reader, limit)

    monkeypatch.setattr(StateReader, "state", spied)
    with live_server(SMALL) as server, busy(server, 6, max_tokens=30, ignore_eos=True):
        while not (state := get(server, "state", EngineState)).requests.preempted:
            assert server.engine.has_work
        truth, told = truths[state.step], state.requests
        assert state.pool.slots == truth["slots"]
        held = sum(cell.owner > 0 for cell in truth["cells"])
        cached = sum(cell.state == 1 for cell in truth["cells"])
        assert (state.pool.held_blocks, state.pool.cached_blocks) == (held, cached)
        assert state.pool.blank_blocks == 24 - held - cached
        assert [row.id for row in told.running] == truth["running"]
        assert [row.blocks for row in told.running] == truth["blocks"]
        assert [row.prompt_tokens + row.output_tokens for row in told.running] == truth["output"]
        owners = {cell.owner for cell in truth["cells"]} - {0}
        assert {row.number for row in told.running} == owners
        assert [row.id for row in told.preempted] == truth["begun"]
        waiting = sorted([*told.waiting, *told.preempted], key=lambda row: row.wait.ahead)
        assert [row.id for row in waiting] == truth["line"]
        assert [row.wait.ahead for row in waiting] == [*range(len(waiting))]
        assert "blocks, " in waiting[0].wait.text and waiting[0].wait.text.endswith(" free")
        assert waiting[1].wait.why == "behind 1 other"
        assert all(row.ends_within_seconds > 0 for row in told.running)
        assert state.last_preemption.request_id in truth["begun"]
        check_decisions(server)
        check_story(server, told.running[0].id)


def check_decisions(server: LiveServer) -> None:
    """Those after a number, the latest if there are more than wanted."""
    everything = get(server, "decisions", DecisionList)
    numbers = [one.number for one in everything.data]
    assert numbers == sorted(numbers) and numbers[-1] == everything.latest
    assert {"admit", "recompute", "wait"} <= {one.what for one in everything.data}
    later = get(server, "decisions", DecisionList, since=everything.latest, limit=2)
    assert all(one.number > everything.latest for one in later.data) and len(later.data) <= 2


def check_story(server: LiveServer, request_id: str) -> None:
    story = get(server, f"requests/{request_id}", RequestStory)
    (table,) = story.tables
    assert len(table.kv_groups[0].blocks) == story.request.blocks
    assert story.request.http_request_id not in ("", request_id)
    assert {one.request_id for one in story.decisions} == {request_id}
    assert story.prompt is None and story.outputs is None


def test_text_is_told_where_the_operator_asks_for_it() -> None:
    with live_server(dashboard_show_text=True) as server:
        server.script("an answer")
        server.executor.hold()
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(server.complete, prompt=SECRET)
            server.step_until(lambda: bool(server.engine._requests))
            (name,) = server.engine._requests
            told = ask(server, f"requests/{name}").json()
            assert SECRET in told["prompt"] and isinstance(told["outputs"][0], str)
            server.executor.release()
            assert done.result(PATIENCE).status_code == 200


def test_a_watcher_sees_each_block_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    truths: dict[int, list[list[Cell]]] = {}  # a request may end between two steps
    look = BlockLook._look

    def spied(self: BlockLook, *, whole: bool) -> Frames | None:
        engine = self._engine.engine
        truths.setdefault(engine.stats.num_steps, []).append(true_cells(engine.scheduler))
        return look(self, whole=whole)

    monkeypatch.setattr(BlockLook, "_look", spied)
    monkeypatch.setattr(watching, "_EVERY", 0.001)
    with live_server(SMALL) as server:
        with server.http.stream("GET", "/v1/quire/blocks", params={"stream": True}) as stream:
            with busy(server, 4, max_tokens=20):
                pass
            last = Frame(server.http.get("/v1/quire/blocks").content)
            lines, cells, owned = stream.iter_lines(), list[Cell](), 0
            while cells != last.cells:
                line = next(lines)
                if line.startswith("data: "):
                    frame = Frame(base64.b64decode(line[6:]))
                    cells = frame.apply(cells)
                    assert cells in truths[frame.step]
                    owned = max(owned, *(cell.owner for cell in cells))
        assert owned


def test_frames_come_with_the_figures_and_reasons_of_their_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "_EVERY", 0.001)
    params = {"stream": True, "pressure": True}
    with (
        live_server(SMALL) as server,
        server.http.stream("GET", "/v1/quire/blocks", params=params) as stream,
        busy(server, 6, max_tokens=20, ignore_eos=True),
        ThreadPoolExecutor(1) as reader,
    ):
        lines, cells, reasons = stream.iter_lines(), list[Cell](), 0
        data = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        while reasons < 3:
            answer = reader.submit(next, data)
            server.step_until(answer.done)
            pressure, blocks = answer.result()["pressure"], answer.result()["blocks"]
            if blocks is not None:
                frame = Frame(base64.b64decode(blocks))
                cells = frame.apply(cells)
                assert frame.step == pressure["step"]
            free, pool = sum(cell.owner == 0 for cell in cells), pressure["pool"]
            assert pool["cached_blocks"] + pool["blank_blocks"] == free
            waits = pressure["num_waiting"] + pressure["num_preempted"]
            assert (pressure["first"] is not None) == (waits > 0)
            if waits and pressure["first"]["wait"]["unit"] == "blocks":
                reasons += 1
                assert pressure["first"]["wait"]["free"] == free


def test_a_watcher_that_does_not_read_goes_on_from_a_snapshot() -> None:
    async def run() -> None:
        watcher = BlockWatcher()
        watcher.put(Frames(b"whole", b"d0"))
        assert not watcher._frames, "it has not asked yet"
        first = asyncio.create_task(watcher.frame())
        await asyncio.sleep(0)
        assert watcher.needs_snapshot
        watcher.put(Frames(b"whole", b"d1"))
        assert await first == b"whole"
        for number in range(1000):
            watcher.put(Frames(None, b"%d" % number))
            assert len(watcher._frames) <= watching._UNREAD and not watcher.needs_snapshot
        again = asyncio.create_task(watcher.frame())
        await asyncio.sleep(0)
        assert watcher.needs_snapshot, "what it has missed is dropped"
        watcher.put(Frames(b"later", b"d2"))
        assert await again == b"later"
        assert await watcher.frame(0.001) is None
        watcher.fail(EngineError("gone"))
        with pytest.raises(EngineError):
            await watcher.frame()

    asyncio.run(run())


def test_so_many_may_watch_and_who_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_UNREAD", 0.05)
    monkeypatch.setattr(watching, "_LINGER", 0.01)
    allocator = PagedAllocator(8, 4)
    scheduler = Scheduler(allocator, BatchLimits(4, 16))

    async def call(act: Any) -> Any:
        return act()

    engine: Any = SimpleNamespace(
        call=call, engine=SimpleNamespace(scheduler=scheduler, stats=SimpleNamespace(num_steps=3))
    )

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    async def stuck(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await never()

    async def run() -> None:
        watch = BlockWatch(engine)
        streams = [routes.FrameStream(watch)({}, never, stuck) for _ in range(watching._MOST)]
        tasks = [asyncio.create_task(one) for one in streams]
        await asyncio.sleep(0.01)
        with pytest.raises(TooManyWatchersError):
            await routes.FrameStream(watch)({}, never, stuck)
        assert allocator.device.touched is not None
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        with watch.watching() as watcher:
            assert await watcher.frame() is not None, "there is room again"
        await asyncio.wait_for(watch._task, PATIENCE)
        assert allocator.device.touched is None, "nothing is noted unless somebody watches"

    asyncio.run(run())


def test_nothing_is_told_without_a_key() -> None:
    with live_server(api_key=["key-of-the-house"]) as server:
        for path in PATHS:
            assert server.http.get(f"/v1/quire/{path}").status_code == 401
        headers = {"authorization": "Bearer key-of-the-house"}
        answer = server.http.get("/v1/quire/state", headers=headers)
        assert answer.status_code == 200 and answer.json()["model"] == MODEL
        assert "key-of-the-house" not in answer.text


def test_the_past_is_kept_for_whoever_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.stats._MOMENT", 1e-6)
    with live_server() as server:
        done = server.complete(prompt=SECRET, max_tokens=9, ignore_eos=True)
        assert done.json()["usage"]["completion_tokens"] == 9
        told = get(server, "history", MomentList)
        assert [one.step for one in told.data] == [*range(1, 10)]
        assert told.data[-1].decisions["admit"] == 1 and told.data[0].requests.num_running == 1
        assert not told.data[0].requests.running, "names and figures of nobody"
        assert get(server, "decisions", DecisionList, limit=0).data == []


def test_who_looks_does_not_end_who_serves(caplog: pytest.LogCaptureFixture) -> None:
    def note() -> int:
        raise ValueError

    events = Events(Parts())
    events.add(History(note, iter(range(100, 200, 10)).__next__))
    for _ in range(3):
        events.tell(events.took, taken(Step(), 1.0, ()))
    assert caplog.text.count("History watches no longer") == 1


def test_what_is_not_there_and_what_is_out_of_range_is_named(shared: LiveServer) -> None:
    gone = shared.http.get("/v1/quire/requests/nobody")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")
    wrong = shared.http.get("/v1/quire/state", params={"limit": 5000})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "limit"
    assert "1000" in wrong.json()["error"]["message"]


def test_a_thousand_who_ask_at_once_cost_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    read, slept = list[str](), list[float]()
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    async def call(act: Any) -> Any:
        await sleep(0)
        return act()

    def reads(what: str) -> Any:
        def act() -> str:
            read.append(what)
            clock[0] += 0.25
            if what == "wrong":
                raise UnknownRequestError(what)
            return what

        return act

    async def run() -> None:
        engine: Any = SimpleNamespace(call=call)
        ask = watching.Queries(engine).ask
        many = [asyncio.create_task(ask("state", reads("state"))) for _ in range(1000)]
        wrong = asyncio.create_task(ask("wrong", reads("wrong")))
        await sleep(0)
        many[0].cancel()
        answers = await asyncio.gather(*many[1:])
        assert {*answers} == {b'"state"'}, "one who leaves takes no other's answer along"
        with pytest.raises(UnknownRequestError):
            await wrong
        await ask("state", reads("state"))

    clock = [0.0]
    monkeypatch.setattr(
        watching, "time", SimpleNamespace(perf_counter=lambda: clock[0], monotonic=lambda: clock[0])
    )
    patient = SimpleNamespace(**{**vars(asyncio), "sleep": noted})
    monkeypatch.setattr(watching, "asyncio", patient)
    asyncio.run(run())
    assert read == ["state", "wrong", "state"]
    assert slept == pytest.approx([0, 0.25 * 49, 0.25 * 49]), "a fiftieth of the engine's time"


def test_many_who_ask_and_leave_keep_nobody_from_asking() -> None:
    read, steps = list[int](), asyncio.Event()

    async def call(act: Any) -> Any:
        await steps.wait()  # a step is under way
        return act()

    async def run() -> None:
        engine: Any = SimpleNamespace(call=call)
        queries = watching.Queries(engine)

        def ask(number: int) -> asyncio.Task[bytes]:
            def act() -> int:
                read.append(number)
                return number

            return asyncio.create_task(queries.ask(number, act))

        first = ask(-1)
        await asyncio.sleep(0.01)
        many = [ask(number) for number in range(1000)]
        await asyncio.sleep(0)
        refused = [one for one in many if one.done() and one.exception() is not None]
        assert len(refused) == 1000 - watching._QUESTIONS
        with pytest.raises(TooManyWatchersError, match="questions wait already"):
            await refused[0]
        again = ask(0)
        many[0].cancel()
        many[1].cancel()
        steps.set()
        assert (await first, await again) == (b"-1", b"0")
        assert await many[2] == b"2" and await ask(7777) == b"7777"
        assert read == [-1, *range(watching._QUESTIONS), 7777]

    asyncio.run(run())


def test_questions_are_put_as_there_is_time_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], list[int]()
    monkeypatch.setattr(watching, "_SHARE", 1.0)
    monkeypatch.setattr(watching, "_LONGEST", 2.5)
    monkeypatch.setattr(
        watching, "time", SimpleNamespace(perf_counter=lambda: clock[0], monotonic=lambda: 0.0)
    )

    async def call(act: Any) -> Any:
        found = act()
        calls.append(len(found[0]))
        await asyncio.sleep(0)
        return found

    def act() -> int:
        clock[0] += 1.0
        return int(clock[0])

    async def run() -> None:
        queries = watching.Queries(SimpleNamespace(call=call))  # type: ignore[arg-type]
        asked = [asyncio.create_task(queries.ask(number, act)) for number in range(7)]
        assert [*await asyncio.gather(*asked)] == [b"%d" % number for number in range(1, 8)]

    asyncio.run(run())
    assert calls == [3, 3, 1]


def test_who_asks_is_told_whatever_the_engine_ends_with() -> None:
    async def call(act: Any) -> Any:
        raise RuntimeError("it has ended")

    async def run() -> None:
        ask = watching.Queries(SimpleNamespace(call=call)).ask  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="it has ended"):
                await asyncio.wait_for(ask("state", int), 60)

    asyncio.run(run())


def test_pages_that_never_read_are_nobodys_burden(server: LiveServer) -> None:
    address = ("127.0.0.1", server.server.port)
    server.script(" an answer")
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        for page in pages:
            page.sendall(b"GET /v1/quire/blocks?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        firsts = Counter(page.recv(12) for page in pages)
        most = watching._MOST
        assert firsts == {b"HTTP/1.1 200": most, b"HTTP/1.1 429": 100 - most}
        answer = server.complete(prompt="hello", max_tokens=30).json()
        assert answer["choices"][0]["text"] == " an answer"
        assert server.http.get("/v1/quire/state").status_code == 200
    eventually(lambda: server.http.get("/v1/quire/blocks").status_code == 200)
