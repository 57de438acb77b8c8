"""Where a process finds the records of its model: names, by segment and place."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from quire.blocks.store.segment import names_in
from quire.core.memory import BlockHash

SEGMENT = re.compile(r"[0-9a-f]{32}\.blocks")


class RecordPlace(NamedTuple):
    """Of a record: a segment's file, how many records it has, and which of them it is."""

    file: str
    records: int
    number: int


class SegmentIndex:
    """What a directory's segments hold, as of some state of it. For several threads.

    It is made of the segments' beginnings, and so never lost; who changes the directory counts
    the state up, and others look again when they see that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: int | None = None
        self._names: dict[str, Sequence[BlockHash]] = {}  # by segment
        self._places: dict[BlockHash, RecordPlace] = {}

    def find(self, name: BlockHash, state: int) -> RecordPlace | None:
        """``state``: of the directory, now."""
        with self._lock:
            if state != self._state:
                self._look()
                self._state = state
            return self._places.get(name)

    def last_known(self, name: BlockHash) -> RecordPlace | None:
        """Without a look at the directory."""
        return self._places.get(name)

    def add(self, segment: str, names: Sequence[BlockHash], before: int, after: int) -> None:
        """A segment that this process has written, between two states."""
        with self._lock:
            self._enter(segment, names)
            if self._state == before:
                self._state = after

    def forget(self, segment: str) -> None:
        """It is gone."""
        with self._lock:
            self._drop(segment)

    def _look(self) -> None:
        try:
            with os.scandir(self._path) as entries:
                there = {entry.name for entry in entries if SEGMENT.fullmatch(entry.name)}
        except FileNotFoundError:
            there = set()
        for segment in self._names.keys() - there:
            self._drop(segment)
        for segment in there - self._names.keys():
            names: Sequence[BlockHash] = ()  # of one that is damaged: it will be given up in time
            with suppress(OSError):
                names = names_in(f"{self._path}/{segment}")
            self._enter(segment, names)

    def _enter(self, segment: str, names: Sequence[BlockHash]) -> None:
        self._names[segment] = names
        for number, name in enumerate(names):
            self._places[name] = RecordPlace(segment, len(names), number)

    def _drop(self, segment: str) -> None:
        for name in self._names.pop(segment, ()):
            place = self._places.get(name)
            if place is not None and place.file == segment:
                del self._places[name]
