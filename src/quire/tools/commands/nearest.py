"""What to say where no model could be had by a name: which one may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from quire.models.hub import cached_models
from quire.tools.commands.fitting import ON_GPUS, SUGGESTED

_ALIKE = 0.7  # below it ``difflib`` finds something for every name
_MOST = 3  # names that are said
_MOST_BESIDE = 1000  # files of a directory that are looked at
_LONGEST = 200  # characters that are compared


def hint(name: str) -> str:
    """The names that come near, and the commands that say more."""
    close = nearest(name)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"{meant}quire serve alone lists models for this machine, quire models those that are "
        "here; quire doctor says whether Hugging Face answers"
    )


def nearest(name: str) -> list[str]:
    """The models that may be meant: beside the path, in the cache, or among those suggested."""
    known = {each.lower(): each for each in (*_beside(name), *_names())}
    wanted = name[:_LONGEST].lower()
    if wanted in known:  # it is one, which cannot be had now
        return []
    tails: dict[str, list[str]] = {}
    for lower, each in known.items():
        tails.setdefault(lower.rpartition("/")[2], []).append(each)
    tail = wanted.rstrip("/").rpartition("/")[2]
    begun = [each for own, them in tails.items() if tail and own.startswith(tail) for each in them]
    if begun:
        return begun[:_MOST]
    close = difflib.get_close_matches(tail, tails, n=1, cutoff=_ALIKE)
    return tails[close[0]][:_MOST] if close else []


def _names() -> Iterator[str]:
    yield from (model.name for model in cached_models())
    yield from (shape.name for shape in (*SUGGESTED, *ON_GPUS))


def _beside(name: str) -> Iterator[str]:
    """The directories and GGUF files where the path would be."""
    path = Path(name[:_LONGEST]).expanduser()
    try:
        for other in islice(path.parent.iterdir(), _MOST_BESIDE):
            if other.suffix == ".gguf" or (other / "config.json").exists():
                here = not other.is_absolute() and len(other.parts) == 1
                yield f"./{other}" if here else str(other)
    except (OSError, ValueError):  # no such directory, or a NUL
        return
