"""What forms of models were found to lose, in files of the user's: for those who start a server.

``quire evaluate`` finds it, and writes it beside what the form is of: the model's files by name,
size and time, and the types. A form that is loaded otherwise by another version is another one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from quire.core.version import __version__


class KnownLoss(NamedTuple):
    """What a form loses beside the model's own weights."""

    predictions: int
    more_perplexity: float  # as a share of the own
    same_token: float  # share of predictions whose likeliest token is the same

    def __str__(self) -> str:
        return (
            f"perplexity {self.more_perplexity:+.1%}, the same likeliest token in "
            f"{self.same_token:.1%} of {self.predictions:,} predictions"
        )


def form_key(files: Iterable[Path], types: Iterable[str]) -> str:
    """The name of a form: of a model's files, and of the types of weights and cache."""
    kept = [
        (path.name, found.st_size, found.st_mtime_ns)
        for path in sorted(files)
        for found in [path.stat()]
    ]
    facts = json.dumps([__version__, kept, list(types)])
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def known_loss(key: str) -> KnownLoss | None:
    """The loss; None: nobody has measured it, or the file cannot be read."""
    try:
        found = KnownLoss(**json.loads(_file(key).read_text("utf-8")))
        return KnownLoss(int(found[0]), float(found[1]), float(found[2]))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def remember_loss(key: str, loss: KnownLoss) -> None:
    """For those who start with this form; where the cache cannot be written, for nobody."""
    path = _file(key)
    aside = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(loss._asdict()), "utf-8")
        aside.replace(path)


def _file(key: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "quire" / "losses" / f"{key}.json"
