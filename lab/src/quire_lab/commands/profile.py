"""``--profile`` of ``quire bench``: what the engine does meanwhile, for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from quire.engine.engine import Engine


@contextmanager
def profiled(engine: Engine | None, path: str | None) -> Iterator[None]:
    """Write a profile of the block to ``path``. ConfigError if it cannot be written.

    engine: None: a server's, which only that server can profile.
    """
    if path is None:
        yield
        return
    if engine is None:
        raise ConfigError("profile does nothing with a url: POST /v1/quire/profile there")
    from quire.engine.tracing import Profile

    try:
        with Path(path).open("w", encoding="utf-8") as file:
            profile = Profile(engine.events, engine.clock())
            try:
                yield
            finally:
                profile.finish(engine.states())
            json.dump(profile.trace(), file)
    except OSError as error:
        raise ConfigError(f"profile {path} cannot be written: {error}") from error
