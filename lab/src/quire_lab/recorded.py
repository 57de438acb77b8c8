"""Recordings of a simulation: what the page would have shown of such an engine."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from quire.capabilities.sessions import SessionManager
from quire.core.protocol import Decision, Outcome, Parts, Progress, Step
from quire.engine.capabilities import Capabilities
from quire.engine.dashboard import BlockTracker, delta, snapshot
from quire.engine.events import Events
from quire.engine.outputs import Delta, together
from quire.engine.progress import RequestProgress, taken
from quire.engine.stats import DecisionLog, EngineStats, PartTimes
from quire.engine.waiting_room import WaitingRoom
from quire.http.answers.rendering import encode
from quire.http.live.state import RequestStory, StateReader
from quire_lab.recording.form import STORIES, RecordingHeader, Writer
from quire_lab.simulation.engine import SimulatedEngine
from quire_lab.simulation.result import Instant, RequestHolding

_STATES, _FRAMES = 1.0, 0.1  # seconds from one to the next
_LIMIT = 100  # requests of each kind that are described
_ALL = 1 << 30  # blocks per frame; no client waits


class Notes:
    """The facts that an engine in the simulation's place would know of itself."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.scheduler = engine.scheduler
        self.stats = EngineStats()
        self.part_times = PartTimes(Events(Parts()))  # none: nothing is computed
        self.log = DecisionLog()
        self.waiting_room, self.forecasts = WaitingRoom(self.scheduler.queue), None
        self.capabilities = Capabilities(SessionManager(), speculation=engine.speculation)
        self.now = 0.0
        self.clock = lambda: self.now
        self._last: dict[str, dict[int, float]] = {}  # when outputs had their latest tokens

    def progress(self, request_id: str) -> RequestProgress | None:
        """Nothing, as there are no texts."""

    def plan(self, step: Step) -> None:
        self.log.decided(step)
        self.waiting_room.observe(step.now)

    def end(
        self, now: float, step: Step, outcomes: Mapping[int, Outcome], progress: Sequence[Progress]
    ) -> None:
        self.now = now
        drafts = [
            (len(chunk.drafts), len(outcomes[chunk.seq_id].tokens) - 1)
            for chunk in step.chunks
            if chunk.drafts
        ]
        self.stats.took(taken(step, now - step.now, self._deltas(progress), drafts))

    def _deltas(self, progress: Sequence[Progress]) -> list[Delta]:
        """As the engine would give them."""
        deltas = []
        for request, branch, sample in ((one.request, one.branch, one.sample) for one in progress):
            times = self._last.setdefault(request.request_id, {})
            seconds = self.now - times.get(branch, request.arrival)
            tokens = () if sample is None else (sample.token_id,)
            first = branch not in times
            deltas.append(Delta(request.request_id, branch, "", tokens, None, seconds, first))
            times[branch] = self.now
        for request_id in {one.request.request_id for one in progress}:
            if self.scheduler.group(request_id) is None:
                del self._last[request_id]
        return together(deltas)


class Look:
    """One simulated engine as its page has it. An engine can have one."""

    def __init__(self, engine: SimulatedEngine, model_name: str) -> None:
        self.notes = Notes(engine)
        limits = engine.limits
        layers = [(len(kv_group.layers), 0) for kv_group in limits.kv_groups]
        self.reader = StateReader(
            self.notes, model_name, limits.max_model_len, kv_layers=layers, wall=self.notes.clock
        )
        self.model_name = model_name

    @cached_property
    def tracker(self) -> BlockTracker:
        return BlockTracker(self.notes.scheduler)

    def snapshot(self, number: int, now: float) -> bytes:
        """All blocks."""
        return snapshot(self.tracker.blocks, number, self.notes.stats.num_steps, now)

    def follow(self) -> None:
        """Bring the tracker up to date."""
        while not self.tracker.update(_ALL):
            pass


class MomentRecording:
    """Keeps one moment: of the first step that ends after ``at``."""

    def __init__(self, engine: SimulatedEngine, look: Look, at: float) -> None:
        self.moment: Instant | None = None
        self._look = look
        self._block_size = engine.limits.block_size
        engine.visit(at, self._take)

    def _take(self, now: float) -> None:
        look = self._look
        look.notes.now = now
        look.follow()
        running = len(look.notes.scheduler.running)
        state = look.reader.state(max(running, _LIMIT))
        stories = [look.reader.story(row.id) for row in state.requests.running]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "moment")
            with Writer(path, RecordingHeader("simulation", look.model_name, now)) as writer:
                writer.blocks(now, look.snapshot(1, now))
                writer.state(_plain(state))
                for story in stories:
                    writer.story(now, _plain(story))
            holdings = sorted((h for one in stories if (h := _holding(one))), key=lambda h: h[0])
            held = tuple(holding for _, holding in holdings)
            self.moment = Instant(now, self._block_size, held, path.read_bytes())


def _holding(story: RequestStory) -> tuple[int, RequestHolding] | None:
    """With the number of its first block. None: it holds nothing on the device."""
    holders = {
        block: count
        for table in story.tables
        if not table.on_host
        for kv_group in table.kv_groups
        for block, count in zip(kv_group.blocks, kv_group.holders, strict=True)
    }
    if not holders:
        return None
    tokens = max(table.tokens for table in story.tables)
    shared = sum(count > 1 for count in holders.values())
    found = RequestHolding(story.request.id, len(story.tables), tokens, len(holders), shared)
    return min(holders), found


class SimulationRecording:
    """Watches one simulated engine, and writes what its page would have shown."""

    def __init__(self, engine: SimulatedEngine, look: Look, writer: Writer) -> None:
        self._look = look
        self._notes, self._reader = look.notes, look.reader
        self._writer = writer
        self._told = 0  # the latest decision's number
        self._frames = 0
        self._next_state = math.inf  # a second from the first step on, when there are rates
        self._next_frame = -math.inf
        engine.observer = self

    # -- calls of the simulator ----------------------------------------------------------------

    def planned(self, step: Step) -> None:
        if not self._notes.stats.num_steps:
            self._next_state = step.now + _STATES
        self._notes.plan(step)

    def ended(
        self, now: float, step: Step, outcomes: Mapping[int, Outcome], progress: Sequence[Progress]
    ) -> None:
        self._notes.end(now, step, outcomes, progress)
        rests = not self._notes.scheduler.has_work
        due = rests or now >= self._next_state
        if due or now >= self._next_frame:
            self._next_frame = now + _FRAMES
            self._tell_blocks(now)
        if due:  # a state and the blocks of the same moment
            self._next_state = now + _STATES
            self._tell_state(now)

    def refused(self, now: float, decision: Decision) -> None:
        self._notes.log.refused(decision, now)
        if not self._notes.scheduler.has_work:  # there may be no further step to record it
            self._notes.now = now
            self._tell_state(now)

    # -- what is written -----------------------------------------------------------------------

    def _tell_blocks(self, now: float) -> None:
        self._look.follow()
        tracker, step = self._look.tracker, self._notes.stats.num_steps
        changed, tracker.changed = tracker.changed, set()
        if changed or not self._frames:
            self._frames += 1
            if self._frames == 1:
                frame = self._look.snapshot(1, now)
            else:
                frame = delta(tracker.blocks, changed, self._frames, step, now)
            self._writer.blocks(now, frame)

    def _tell_state(self, now: float) -> None:
        told = self._reader.decisions(self._told, _LIMIT * 10)
        self._writer.decisions(now, [_plain(one) for one in told.data])
        self._told = told.latest
        state = self._reader.state(_LIMIT)
        self._writer.state(_plain(state))
        for row in state.requests.running[:STORIES]:
            self._writer.story(now, _plain(self._reader.story(row.id)))


def _plain(value: object) -> dict[str, Any]:
    """A value in the form in which the server writes it."""
    plain: dict[str, Any] = json.loads(encode(value))
    return plain
