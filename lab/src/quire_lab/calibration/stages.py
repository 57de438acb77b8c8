"""What a calibration has measured so far, kept in a file: a stopped one goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.work import Work
from quire_lab.calibration.steps import TimedStep

_VERSION = 1

Run = list[TimedStep]
"""A scenario, served once."""


class Stages:
    """Runs of scenarios, by the engine that served them, the pass and the scenario.

    A file that another calibration has left is begun anew, and so is one whose beginning is no
    header; a line that was not written whole is dropped.
    """

    def __init__(self, path: Path | None, what: Mapping[str, Any]) -> None:
        """path: None: nothing is kept. what: of which engine and in which unit."""
        self.path = path
        self._header = json.dumps({"quire_stages": _VERSION, **what}, sort_keys=True, default=str)
        self._runs: dict[tuple[str, int, str], Run] = {}
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, stage: str, number: int, scenario: str) -> Run | None:
        """A run; None: it is still to be measured. number: of the pass."""
        return self._runs.get((stage, number, scenario))

    def keep(self, stage: str, number: int, scenario: str, run: Run) -> None:
        """Add a run. ConfigError: the file cannot be written."""
        self._runs[stage, number, scenario] = run
        if self.path is None:
            return
        steps = [[*step.work, step.seconds] for step in run]
        line = json.dumps([stage, number, scenario, steps])
        try:
            begun = len(self._runs) > 1 and self.path.exists()
            with self.path.open("a" if begun else "w", encoding="utf-8") as file:
                file.write(line + "\n" if begun else f"{self._header}\n{line}\n")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error

    def end(self) -> None:
        """All is measured: nothing has to be kept."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        try:
            header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        except (OSError, UnicodeDecodeError):
            return
        if header != self._header:
            return
        for line in lines:
            try:
                stage, number, scenario, steps = json.loads(line)
                run = [TimedStep(Work(*work), seconds) for *work, seconds in steps]
            except (TypeError, ValueError):
                return  # the process ended while it was written
            self._runs[stage, number, scenario] = run
