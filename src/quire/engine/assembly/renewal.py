"""What an engine begins anew with, over a model that is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.capabilities.speculation import speculation_of
from quire.core.errors import RankError
from quire.core.scheduling import Scheduler
from quire.engine.capabilities import Capabilities
from quire.engine.config import EngineConfig


class Forgetful(Protocol):
    """An executor of a model."""

    def forget(self) -> None:
        """No sequence lives any more that steps have told of."""
        ...


def renewal(
    executor: Forgetful, schedule: Callable[[], Scheduler], config: EngineConfig, *, alone: bool
) -> Callable[[Capabilities], tuple[Scheduler, Capabilities]]:
    """See ``ExecutorTraits``. alone: no other rank may be half way through a step.

    schedule: makes a scheduler over an empty pool.
    """

    def afresh(capabilities: Capabilities) -> tuple[Scheduler, Capabilities]:
        if not alone:
            raise RankError("a step was interrupted half way, and other ranks are in it still")
        executor.forget()
        return schedule(), capabilities._replace(speculation=speculation_of(config.speculation))

    return afresh
