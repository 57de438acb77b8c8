"""Recordings: what is written is read, what is no recording is refused, and simulations are told
as they are."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import QuireError
from quire.engine.dashboard import BlockMap, BlockState, Cell, delta, snapshot
from quire.engine.dashboard.holders import first_blocks
from quire.engine.traces.request import Segment, TraceRequest
from quire.tools.cli import main
from quire_lab.recorded import Look, MomentRecording, SimulationRecording
from quire_lab.recording import RecordingHeader, Writer, check, form, lines, reading
from quire_lab.recording.form import name_of
from quire_lab.simulation import OpenLoop, Simulator
from quire_lab.simulation.engine import SimulatedEngine
from quire_lab.simulation.export import summary_values
from support.block_truth import Frame, true_cells
from support.limits import make_limits
from support.recordings import LIMITS, Costs, simulated, workload

HEADER = RecordingHeader("server", "/home/me/models/tiny", 1000.0)
HEAD = json.dumps({"quire": "recording", "format": 1, "model": "m", "begun": 0})
OTHER_HEAD = HEAD.replace("1", "2") + "\n"
STORY = {"request": {"id": "a"}, "prompt": "a secret", "outputs": ["another"], "tables": []}


def state(time: float) -> dict[str, Any]:
    return {"time": time, "model": HEADER.model, "step": 7, "why": "größer"}


def frames(num_blocks: int = 5) -> list[bytes]:
    """A snapshot, and a block that changes."""
    blocks = BlockMap(num_blocks)
    first = snapshot(blocks, 1, 1, 1000.0)
    blocks.put(3, 2, owner=9, shared=1)
    return [first, delta(blocks, [3], 2, 2, 1000.5)]


def recorded(path: Path, **header: Any) -> Path:
    with Writer(path, RecordingHeader(HEADER.of, HEADER.model, HEADER.begun, **header)) as writer:
        for number, frame in enumerate(frames()):
            writer.blocks(1000.0 + number, frame)
        writer.decisions(1001.5, [{"number": 1, "what": "wait"}])
        writer.decisions(1001.5, [])
        writer.state(state(1002.0))
        writer.story(999.0, STORY)  # the clock was set back
    return path


def test_what_is_written_is_read_and_the_same_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a")
    header, rest = lines(path)
    assert (header["model"], header["begun"], header["text"]) == ("tiny", 1000.0, False)
    story = {**STORY, "prompt": None, "outputs": None, "decisions": []}
    assert [tuple(line) for line in rest] == [
        (0.0, "blocks", frames()[0]),
        (1.0, "blocks", frames()[1]),
        (1.5, "decisions", [{"number": 1, "what": "wait"}]),
        (2.0, "state", {**state(1002.0), "model": "tiny"}),
        (2.0, "story", story),
        (2.0, "end", "stopped"),
    ]
    told = check(path)
    assert (told.seconds, told.num_blocks, told.cut) == (2.0, 5, False)
    assert recorded(tmp_path / "b").read_bytes() == path.read_bytes()
    assert path.read_bytes()[4:8] == bytes(4), "no time of day"
    with_text = gzip.decompress(recorded(tmp_path / "c", text=True).read_bytes())
    assert b"a secret" in with_text and b"a secret" not in gzip.decompress(path.read_bytes())


@pytest.mark.parametrize(
    ("model", "name"),
    [("/a/b/c", "c"), ("../x/", "x"), ("~/m", "m"), ("C:\\models\\q", "q"), ("org/m", "org/m")],
)
def test_a_path_is_told_by_its_last_part(model: str, name: str) -> None:
    assert name_of(model) == name


def test_it_is_full_after_so_long_or_so_much_and_whole_even_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(tmp_path / "long", HEADER, 2.0) as writer:
        for time in range(1000, 1010):
            writer.state(state(time))
    assert writer.full == "seconds" and check(tmp_path / "long").counts["state"] == 3
    monkeypatch.setattr(form, "MOST_BYTES", 1000)
    with Writer(tmp_path / "much", HEADER) as writer:
        for time in range(1000, 1100):
            writer.state(state(time))
    told = check(tmp_path / "much")
    assert writer.full == "bytes" and not told.cut and 5 < told.counts["state"] < 50
    assert len(gzip.decompress((tmp_path / "much").read_bytes())) <= 1000


def test_what_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    writer = Writer(path, HEADER)
    for time in range(1000, 1020):
        writer.state(state(time))
    written = path.read_bytes()  # not ended: what has been recorded is there
    assert check(path).counts["state"] == 20 and check(path).cut
    path.write_bytes(written[:-20])
    assert check(path).counts["state"] == 19
    writer.close()


def line(**values: Any) -> str:
    return json.dumps({"t": 1, **values})


def blocks(frame: bytes) -> str:
    return line(blocks=base64.b64encode(frame).decode())


FIRST, SECOND = frames()
HOSTILE = {
    "no JSON": (["{"], "line 2: it is not JSON"),
    "deep": (["[" * 100_000], "line 2: it is not JSON"),
    "a list": (["[]"], "line 2: it is not a JSON object"),
    "NaN": (['{"t": NaN, "state": {}}'], "line 2: it is not JSON"),
    "no time": (['{"state": {}}'], "line 2: its time"),
    "a time that is none": (['{"t": true, "state": {}}'], "line 2: its time"),
    "backwards": ([line(state={}), '{"t": 0.5, "state": {}}'], "line 3: its time"),
    "too late": (['{"t": 3601, "state": {}}'], "line 2: its time"),
    "nothing": ([line()], "line 2: it must hold one of"),
    "unknown": ([line(html="<script>")], "line 2: it must hold one of"),
    "two things": ([line(state={}, blocks="")], "line 2: it must hold one of"),
    "another kind": ([line(state=[])], "line 2: it must hold one of"),
    "no base64": ([line(blocks="é")], "line 2: it holds no frame"),
    "short": ([blocks(FIRST[:20])], "line 2: it holds no frame"),
    "cut": ([blocks(FIRST[:-1])], "line 2: it holds no frame"),
    "other magic": ([blocks(b"QX" + FIRST[2:])], "line 2: it holds no frame"),
    "no snapshot": ([blocks(SECOND)], "line 2: its blocks go with no snapshot"),
    "beyond": (
        [blocks(snapshot(BlockMap(2), 1, 1, 0.0)), blocks(SECOND)],
        "line 3: its blocks go with no snapshot",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_is_believed(name: str, tmp_path: Path) -> None:
    rest, message = HOSTILE[name]
    path = tmp_path / "x.quire"
    path.write_bytes(gzip.compress("\n".join([HEAD, *rest, ""]).encode()))
    with pytest.raises(QuireError, match=message):
        check(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: it is not JSON"),
        (b"no gzip", "not a gzip file"),
        (gzip.compress(b"{}\n", mtime=0), "not a recording of format 1"),
        (gzip.compress(OTHER_HEAD.encode(), mtime=0), "not a recording of format 1"),
        (gzip.compress(b"0" * 300_000, mtime=0), "has more than"),  # a long line
    ],
)
def test_no_file_is_believed(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_LINE", 200_000)
    path = tmp_path / "x.quire"
    path.write_bytes(content)
    with pytest.raises(QuireError, match=message):
        check(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 17)
    path = tmp_path / "x.quire"
    path.write_bytes(gzip.compress((HEAD + "\n" + (line(state={}) + "\n") * 10_000).encode()))
    with pytest.raises(QuireError, match="has more than"):
        check(path)
    monkeypatch.setattr(reading, "MOST_PACKED", 10)
    with pytest.raises(QuireError, match="more than 10"):
        check(path)


# -- simulations -----------------------------------------------------------------------------------


class Checked(SimulationRecording):
    """Notes what is true whenever it looks."""

    def __init__(self, engine: SimulatedEngine, look: Look, writer: Writer) -> None:
        super().__init__(engine, look, writer)
        self.truths: dict[int, list[Cell]] = {}  # by frame

    def _tell_blocks(self, now: float) -> None:
        super()._tell_blocks(now)
        self.truths[self._frames] = true_cells(self._notes.scheduler)


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"n": 3, "beam_search": True}])
def test_a_simulation_is_told_as_it_is_and_goes_as_without(
    more: dict[str, Any], tmp_path: Path
) -> None:
    path, requests = tmp_path / "x.quire", workload(**more)
    result, recording = simulated(path, requests, recording=Checked)
    plain = Simulator(LIMITS, Costs()).serve(OpenLoop(requests))
    assert isinstance(recording, Checked)
    assert summary_values(result) == summary_values(plain)

    told = list(lines(path)[1])
    shown = [one for one in told if one.kind == "blocks"]
    states = [one.value for one in told if one.kind == "state"]
    cells: list[Cell] = []
    for number, one in enumerate(shown, 1):
        frame, before = Frame(one.value), cells
        cells = frame.apply(before)
        assert cells == recording.truths[number]
        assert all(cells[block] != before[block] for block in frame.blocks or ())
    moments = {one.seconds for one in told if one.kind == "state"}
    for sooner, later in pairwise(shown):
        assert later.seconds in moments or later.seconds - sooner.seconds > 0.09
    assert states[-1]["requests"]["num_running"] == 0 and states[-1]["step"] == plain.num_steps
    assert states[-1]["decisions"] == dict(plain.num_decisions)
    waits = [row["wait"] for one in states for row in one["requests"]["waiting"]]
    assert waits and all(wait["text"] for wait in waits)
    assert max(one["requests"]["num_waiting"] for one in states) > LIMITS.max_num_seqs + 1
    for one in told:
        if one.kind == "story":
            branches = [table["branch"] for table in one.value["tables"]]
            assert len(set(branches)) == len(branches), "beams too are told apart"
    verdicts = [each["what"] for one in told if one.kind == "decisions" for each in one.value]
    assert "refuse" in verdicts and ("recompute" in verdicts or more)


class CheckedMoment(MomentRecording):
    """Notes what is true at its moment."""

    def _take(self, now: float) -> None:
        super()._take(now)
        scheduler = self._look.notes.scheduler
        self.cells = true_cells(scheduler)
        pools = scheduler.allocator.views()
        firsts = first_blocks(pools)
        self.holdings = {}
        for group in scheduler.running:
            tables = [scheduler.allocator.table(seq_id).kv_groups for seq_id in group.tables()]
            blocks = {
                first + block
                for table in tables
                for first, kv_group in zip(firsts, table, strict=False)
                for block in kv_group.block_ids
            }
            shared = sum(self.cells[block].shared > 1 for block in blocks)
            self.holdings[group.request.request_id] = (len(tables), len(blocks), shared)


CONTENT = (Segment("system", 32),)
MOMENTS = {
    "shared": (0.045, {"enable_prefix_caching": True}),
    "windows": (0.3, {"enable_prefix_caching": True, "windows": (None, 48)}),
    "reserved": (0.045, {"kv_allocator": "max", "num_blocks": 200}),
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a recording"])
@pytest.mark.parametrize("which", MOMENTS)
def test_a_moment_has_every_owner_of_every_block(which: str, beside: bool, tmp_path: Path) -> None:
    at, options = MOMENTS[which]
    limits = make_limits(**{"num_blocks": 40, "max_model_len": 512, **options})
    requests = [
        TraceRequest(0.0, 40, 20, n=2, content=CONTENT), TraceRequest(0.0, 40, 20, content=CONTENT)
    ]  # fmt: skip
    simulator = Simulator(limits, Costs())
    look = Look(simulator.engine, "m")
    kept = CheckedMoment(simulator.engine, look, at)
    with Writer(tmp_path / "x.quire", RecordingHeader("simulation", "m", 0.0)) as writer:
        recording = Checked(simulator.engine, look, writer) if beside else None
        simulator.serve(OpenLoop(requests))
    moment = kept.moment
    assert moment is not None and moment.time <= at < moment.time + 0.02
    (tmp_path / "moment.quire").write_bytes(moment.recording)
    told = {line.kind: line.value for line in lines(tmp_path / "moment.quire")[1]}
    assert Frame(told["blocks"]).apply([]) == kept.cells
    held = {one.request_id: (one.outputs, one.blocks, one.shared) for one in moment.holdings}
    assert held == kept.holdings and set(held) == ({"0", "1"} if at < 0.1 else set(held))
    states = {cell.state for cell in kept.cells}
    expected = {
        "shared": BlockState.USED, "windows": BlockState.WINDOW, "reserved": BlockState.RESERVED
    }  # fmt: skip
    assert expected[which] in states
    assert any(one.shared for one in moment.holdings) == (which != "reserved")
    if recording is not None:
        cells: list[Cell] = []
        for number, line in enumerate(
            (one for one in lines(tmp_path / "x.quire")[1] if one.kind == "blocks"), 1
        ):
            cells = Frame(line.value).apply(cells)
            assert cells == recording.truths[number]


def test_the_command_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.quire"
    command = ["simulate", "llama-3-8b", "--machine", "h100", "--requests", "20", "--input", "99"]
    assert main([*command, "--output", "50", "--page-out", str(path)]) == 0
    assert check(path).header["of"] == "simulation" and check(path).counts["state"] == 1
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert "does not exist" in capsys.readouterr().err
