"""Adapters that all ranks hold, each its part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError, QuireError
from quire.core.protocol import Adapter
from quire.engine.adapters import AdapterSource
from quire.engine.assembly.ranks.line import Message
from quire.engine.assembly.ranks.team import Team


def read_on_all(
    team: Team, source: AdapterSource, kept: Callable[[], Iterable[Adapter]]
) -> AdapterSource:
    """The same, whose weights are read by all ranks at once.

    kept: those that rank 0 has in memory then; the others let go of the rest.
    """

    def load() -> Any:
        team.ask(
            "adapter",
            path=str(source.path),
            fingerprint=source.fingerprint.hex(),
            kept=[adapter.fingerprint.hex() for adapter in kept()],
        )
        try:
            weights = source.load()
        finally:
            answers = team.answers("adapter")
        for member, answer in zip(team.members, answers, strict=True):
            if answer["error"]:
                raise ModelError(f"rank {member.rank}: {answer['error']}")
        return weights

    return source._replace(load=load)


class HeldAdapters:
    """Those of another rank than 0, as it is told."""

    def __init__(self, check: Callable[[Path], AdapterSource]) -> None:
        self._check = check
        self.weights: dict[Adapter, Any] = {}

    def load(self, message: Message) -> str:
        """What went wrong, if anything did."""
        kept = set(message["kept"])
        for adapter in list(self.weights):
            if adapter.fingerprint.hex() not in kept:
                del self.weights[adapter]
        try:
            source = self._check(Path(message["path"]))
            if source.fingerprint.hex() != message["fingerprint"]:
                return f"{source.path} is another adapter than on rank 0"
            self.weights[Adapter(source.fingerprint, "")] = source.load()
        except QuireError as error:
            return str(error)
        return ""
