"""Steps and the seconds that they took, as ``--record-steps`` writes them or others have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.engine.work import Work
from quire_lab.workload.rows import TraceRow, csv_rows

UNITS = ("wall", "cpu")
"""Seconds of the clock; or of the processor, which nobody else can lengthen by wanting it too."""

_MOST = 1e15  # of anything that is counted
_TIMES = ("begin", "cpu_seconds")
_WHOLE = frozenset(Work._fields) - {
    "prefill_pairs", "prefill_context", "decode_context", "draft_pairs"
}  # fmt: skip


class TimedStep(NamedTuple):
    """The work of a step, and how long it took."""

    work: Work
    seconds: float


class RecordedStep(NamedTuple):
    """A step of a server. Seconds on its recording's clock; None: not in the file."""

    work: Work
    seconds: float
    begin: float | None = None
    cpu_seconds: float | None = None  # of the thread that takes the steps

    def timed(self, unit: str) -> TimedStep:
        """The step with its seconds of the clock, or of the processor."""
        seconds = self.seconds if unit == "wall" else self.cpu_seconds
        assert seconds is not None, "who asks for processor time has looked whether it is told"
        return TimedStep(self.work, seconds)


def read_steps(path: Path) -> list[RecordedStep]:
    """The rows of a CSV, with ``seconds`` and at least one of prefill_tokens and decode_seqs.

    Missing columns have the values of the simplest case: prompts computed whole and alone, one row
    of the LM head per sequence, nothing moved, nothing drafted.

    Raises:
        ConfigError: the line, and what is wrong with it.
    """
    optional = (*Work._fields, "begin", "cpu_seconds")
    steps = [_step(row) for row in csv_rows(path, ("seconds",), optional)]
    if not steps:
        raise ConfigError(f"{path} holds no step")
    for name in ("begin", "cpu_seconds"):
        if len({getattr(step, name) is None for step in steps}) > 1:
            raise ConfigError(f"{path}: {name} is missing in some rows")
    return steps


def _step(row: TraceRow) -> RecordedStep:
    told = {name: _number(row, name) for name in Work._fields if row.values.get(name)}
    if not {"prefill_tokens", "decode_seqs"} & told.keys():
        raise row.error("prefill_tokens or decode_seqs must say what the step computed")
    prefill, seqs = told.get("prefill_tokens", 0), told.get("decode_seqs", 0)
    drafts = told.get("draft_tokens", 0)
    if not prefill + seqs and not any(told.values()):
        raise row.error("the step has nothing to do")
    simplest = {
        "prefill_pairs": prefill * (prefill + 1) / 2,
        "prefill_context": prefill,
        "samples": seqs + drafts + (prefill > 0),
    }
    work = Work(**{**simplest, **told})  # type: ignore[arg-type]  # whole where they must be
    seconds = row.seconds("seconds")
    if seconds <= 0:
        raise row.error("seconds must be above 0")
    begin, cpu = (row.seconds(name) if row.values.get(name) else None for name in _TIMES)
    return RecordedStep(work, seconds, begin, cpu)


def _number(row: TraceRow, name: str) -> float:
    try:
        value = float(row.get(name))
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST or (name in _WHOLE and not value.is_integer()):
        whole = "a whole number" if name in _WHOLE else "a number"
        raise row.error(f"{name} must be {whole} from 0 on, got {row.values[name]!r:.80}")
    return int(value) if name in _WHOLE else value


def check_unit(steps: Sequence[RecordedStep], unit: str, path: Path) -> None:
    """ConfigError if processor times are needed and the steps lack them."""
    if unit == "cpu" and steps[0].cpu_seconds is None:
        raise ConfigError(f"unit cpu: {path} has no column cpu_seconds")
