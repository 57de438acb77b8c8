"""Seconds of steps as they were measured on a machine, and the file that keeps them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.protocol import RecoveryCosts
from quire.engine.work import Work
from quire.models.shape import ModelShape

VERSION = 5
_READ = (3, 4, VERSION)  # what is new in the later ones has a default
KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Numbers of tokens between which a step's time is taken to be linear in them."""

CONTEXT_KNOTS = (0, 2048, 8192, 32768, 131072, 524288)
"""Tokens of context from which on each further one may cost more: caches hold only so many."""


@dataclass(frozen=True)
class CalibratedCosts:
    """A step's time, linear in its work but for the number of tokens and their context.

    Matrix products get more efficient as tokens grow in number, so their time is a broken line
    through ``token_seconds`` at ``knots``. Attention in decoding reads keys and values that caches
    hold in part, so its time is convex in the context. All figures are seconds.
    """

    knots: tuple[int, ...]
    token_seconds: tuple[float, ...]  # of a step by its tokens, without context
    per_seq: float  # for each sequence that gets a token
    context_knots: tuple[int, ...]
    per_context: tuple[float, ...]  # for each token that decoding sequences see beyond each knot
    per_prefill_pair: float  # for each (token, token it sees) of a chunk
    per_draft: float  # for each draft that is verified, beside its place among the tokens
    per_draft_pair: float  # for each (draft, token it sees)
    per_wake: float  # if nothing had run before the step,
    per_woken_token: float  # and for each of its tokens
    per_copied_block: float
    per_swapped_block: float

    def moving(self, work: Work) -> float:
        """Seconds of what a step copies and swaps alone."""
        copied = work.copied_blocks * self.per_copied_block
        return copied + work.swapped_blocks * self.per_swapped_block

    def seconds(self, work: Work) -> float:
        return (
            self._tokens(work.num_tokens)
            + (work.samples - work.draft_tokens) * self.per_seq
            + self._context(work.decode_context)
            + work.prefill_pairs * self.per_prefill_pair
            + work.woken * (self.per_wake + work.num_tokens * self.per_woken_token)
            + self.moving(work)
            + work.draft_tokens * self.per_draft
            + work.draft_pairs * self.per_draft_pair
        )

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        last = self.knots[-1]
        return RecoveryCosts(self.per_swapped_block, self.token_seconds[-1] / last)

    def times(self, factor: float) -> CalibratedCosts:
        """The costs of a machine on which everything takes ``factor`` times as long."""
        return CalibratedCosts(
            knots=self.knots,
            token_seconds=tuple(seconds * factor for seconds in self.token_seconds),
            per_seq=self.per_seq * factor,
            context_knots=self.context_knots,
            per_context=tuple(seconds * factor for seconds in self.per_context),
            per_prefill_pair=self.per_prefill_pair * factor,
            per_draft=self.per_draft * factor,
            per_draft_pair=self.per_draft_pair * factor,
            per_wake=self.per_wake * factor,
            per_woken_token=self.per_woken_token * factor,
            per_copied_block=self.per_copied_block * factor,
            per_swapped_block=self.per_swapped_block * factor,
        )

    def _context(self, count: float) -> float:
        seconds = 0.0
        for knot, each in zip(self.context_knots, self.per_context, strict=True):
            if count <= knot:
                break
            seconds += (count - knot) * each
        return seconds

    def _tokens(self, count: int) -> float:
        knots, seconds = self.knots, self.token_seconds
        right = min(max(1, bisect_left(knots, count)), len(knots) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (knots[right] - knots[left])
        return seconds[left] + slope * (count - knots[left])


def line_weights(count: int, knots: Sequence[int]) -> list[float]:
    """How much each knot's value weighs in the broken line's value at ``count``."""
    right = min(max(1, bisect_left(knots, count)), len(knots) - 1)
    left = right - 1
    part = (count - knots[left]) / (knots[right] - knots[left])
    weights = [0.0] * len(knots)
    weights[left], weights[right] = 1 - part, part
    return weights


@dataclass(frozen=True)
class DraftCalibration:
    """Measured costs of passes of a model that drafts."""

    model: ModelShape
    costs: CalibratedCosts


@dataclass(frozen=True)
class Calibration:
    """Measured costs, of which model and on which machine, and how far off they were.

    measured: how, and of what. unit: seconds of the clock ("wall") or of the processor ("cpu").
    trip_seconds: what a client waits for its first token beside the steps.
    unknown: what could not be measured, and costs nothing here: "swap", "drafts".
    draft: of a model that drafts for this one; None: that was not measured.
    """

    model: ModelShape
    machine: str
    block_size: int
    pool_bytes: int
    costs: CalibratedCosts
    median_error: float  # of held-out steps: |predicted - measured| / measured
    total_error: float  # of the time that they took together
    measured: str = "steps of this engine"
    unit: str = "wall"
    trip_seconds: float = 0.0
    unknown: tuple[str, ...] = ()
    draft: DraftCalibration | None = None

    def draft_costs(self, shape: ModelShape) -> CalibratedCosts:
        """Costs of passes of such a model. ConfigError: unknown."""
        known, ours = self.draft, replace(shape.as_quire_keeps(), notes=())
        if known is None or replace(known.model, name=shape.name, notes=()) != ours:
            whose = "" if known is None else f", but only those of {known.model.name} do"
            raise ConfigError(
                f"speculative_config: these costs, from {self.measured}, do not tell what passes "
                f"of {shape.name} take{whose}: calibrate with the same --speculative-config"
            )
        return known.costs

    def write(self, path: Path) -> None:
        """ConfigError if the file cannot be written."""
        try:
            text = json.dumps({"quire_costs": VERSION, **asdict(self)}, indent=1)
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error


def read_calibration(path: Path) -> Calibration:
    """Read a file of ``quire calibrate``. ConfigError, with what is wrong: it is not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.pop("quire_costs", None) not in _READ:
        raise ConfigError(f"{path} was not written by quire calibrate (version {VERSION})")
    try:
        if values.get("unit", "wall") not in ("wall", "cpu"):
            raise ValueError("unit must be wall or cpu")
        values["model"] = ModelShape.of_values(values["model"])
        values["costs"] = _costs(values["costs"])
        if values.get("draft") is not None:
            model, costs = values["draft"]["model"], values["draft"]["costs"]
            values["draft"] = DraftCalibration(ModelShape.of_values(model), _costs(costs))
        values["unknown"] = tuple(values.get("unknown", ()))
        return Calibration(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a calibration: {error!r}") from error


def _costs(values: Mapping[str, Any]) -> CalibratedCosts:
    costs: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    _check(costs)
    return CalibratedCosts(**costs)


def _check(costs: dict[str, Any]) -> None:
    knots, seconds = costs["knots"], costs["token_seconds"]
    if len(knots) != len(seconds) or len(knots) < 2 or list(knots) != sorted(set(knots)):
        raise ValueError("knots must ascend, with seconds for each")
    for field in fields(CalibratedCosts):
        value = costs[field.name]
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(one, (int, float)) and one >= 0 for one in numbers):
            raise ValueError(f"{field.name} must not be negative")
    if len(costs["context_knots"]) != len(costs["per_context"]):
        raise ValueError("there must be a per_context for each of context_knots")
    if min(seconds) <= 0:
        raise ValueError("token_seconds must be above 0")
