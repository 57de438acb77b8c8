"""When replicas fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from quire.core.errors import ConfigError

_FAIL_AT = re.compile(r"(\d+(?:\.\d+)?):(\d+)(?::(\d+(?:\.\d+)?))?")


class Failure(NamedTuple):
    """restart_after: seconds until it serves again; None: it does not."""

    at: float
    replica: int
    restart_after: float | None = None

    @classmethod
    def parse(cls, text: str) -> Failure:
        found = _FAIL_AT.fullmatch(text)
        if found is None:
            raise ConfigError(
                "fail_at must be SECONDS:REPLICA or SECONDS:REPLICA:RESTART_AFTER, such as "
                f"120:3:60; got {text!r:.80}"
            )
        at, replica, after = found.groups()
        return cls(float(at), int(replica), None if after is None else float(after))


@dataclass(frozen=True)
class Failures:
    """at: given failures. mtbf: mean seconds of a replica's life, drawn from an exponential
    distribution; None: only the given failures.
    """

    at: tuple[Failure, ...] = ()
    mtbf: float | None = None

    def __post_init__(self) -> None:
        if self.mtbf is not None and not 1 <= self.mtbf <= 1e9:
            raise ConfigError(f"mtbf must be from 1 to 1e9 seconds, got {self.mtbf:g}")

    def life(self, seed: int, replica: int, number: int) -> float | None:
        """Seconds that the replica lives this time; None: for ever."""
        if self.mtbf is None:
            return None
        return Random(f"{seed} {replica} {number}").expovariate(1 / self.mtbf)
