"""Random lives that somebody watches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from lives.life import Run

from quire.engine.dashboard import BlockTracker, Cell, delta, holding, snapshot
from support.block_truth import Frame, true_cells, true_holders


class Watched(Run):
    """Somebody watches, now and then looking away."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tracker = BlockTracker(self.scheduler)
        self.cells: list[Cell] = []
        self.frames: list[tuple[bytes, list[Cell]]] = []  # and what blocks are with each
        self.number = 0
        self.num_updates = 0  # of the tracker, since the latest frame
        self.states: Counter[int] = Counter()
        self.most: Counter[str] = Counter()

    def check(self) -> None:
        super().check()
        rng = random.Random(self.number)
        self.number += 1
        if rng.random() < 0.02:
            self.tracker.close()
            self.tracker = BlockTracker(self.scheduler)
            self.cells, self.num_updates = [], 0
        if rng.random() < 0.4:
            return  # nobody looks at every step
        self.num_updates += 1
        if not self.tracker.update(rng.choice([3, 10_000])):
            return  # there was more than may be looked at between two steps
        self.look(self.tracker)

    def look(self, tracker: BlockTracker) -> None:
        truth = true_cells(self.scheduler)
        assert [tracker.blocks[block] for block in range(len(truth))] == truth
        data = snapshot(tracker.blocks, self.number, 7, 1.5)
        whole = Frame(data)
        assert (whole.cells, whole.number, whole.step, whole.time) == (truth, self.number, 7, 1.5)
        if not self.cells:
            self.cells = whole.cells
        else:
            data = delta(tracker.blocks, tracker.changed, self.number, 7, 1.5)
            self._check_changed(tracker.changed, truth)
            self.cells = Frame(data).apply(self.cells)
        tracker.changed, self.num_updates = set(), 0
        assert self.cells == truth
        self.frames.append((data, truth))
        self.ask(self.number % len(truth), truth)
        self.states.update(cell.state for cell in truth)
        for cell in truth:
            self.most["shared"] = max(self.most["shared"], cell.shared)
            self.most["found"] = max(self.most["found"], cell.found)

    def _check_changed(self, changed: set[int], truth: list[Cell]) -> None:
        """Just those that differ; over several updates, some may be again what they were."""
        pairs = enumerate(zip(self.cells, truth, strict=True))
        differ = {block for block, (before, now) in pairs if before != now}
        assert changed >= differ
        if self.num_updates == 1:
            assert changed == differ

    def ask(self, block: int, truth: list[Cell]) -> None:
        found = holding(self.scheduler, block)
        assert found is not None and holding(self.scheduler, len(truth)) is None
        told = [(one.number, one.branch, one.first_token, one.end_token) for one in found.holders]
        assert (len(told), min(told, default=(0,))[0]) == (truth[block].shared, truth[block].owner)
        assert set(told) == true_holders(self.scheduler, block)
        running = {group.request.request_id for group in self.scheduler.running}
        assert all((one.id in running) == one.running for one in found.holders)
