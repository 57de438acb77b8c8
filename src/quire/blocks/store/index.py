"""Finds the records of a model by name: their segment and position."""

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
    """A segment's file, its number of records, and the number of one of them."""

    file: str
    records: int
    number: int


class SegmentIndex:
    """The names in a directory's segments, as of one state of it. For several threads.

    It is made of the segments' headers, and so never lost. Each change of the directory counts its
    state up, and other processes then read it again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: int | None = None
        self._names: dict[str, Sequence[BlockHash]] = {}  # by segment
        self._places: dict[BlockHash, RecordPlace] = {}

    def find(self, name: BlockHash, state: int) -> RecordPlace | None:
        """The location of a record. ``state``: of the directory, now."""
        with self._lock:
            if state != self._state:
                self._look()
                self._state = state
            return self._places.get(name)

    def last_known(self, name: BlockHash) -> RecordPlace | None:
        """The location of a record, without a look at the directory."""
        return self._places.get(name)

    def add(self, segment: str, names: Sequence[BlockHash], before: int, after: int) -> None:
        """Add a segment that this process has written, between two states."""
        with self._lock:
            self._enter(segment, names)
            if self._state == before:
                self._state = after

    def forget(self, segment: str) -> None:
        """Remove a segment that is gone."""
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
            names: Sequence[BlockHash] = ()  # damaged: it will be evicted in time
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
