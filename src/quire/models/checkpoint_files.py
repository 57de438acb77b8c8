"""Finds the files of a checkpoint by the names that savers give them.

One file, or several that an index names, or several that are numbered, as transformers,
safetensors, AutoGPTQ and their like name them. Nothing is guessed: two possible sets, or an
incomplete one, are an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from reprlib import repr as short
from typing import NamedTuple

from quire.core.errors import ModelError
from quire.models.files import read_object
from quire.models.gguf import is_gguf

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"

_MOST_INDEX = 64 << 20  # bytes; that of a model of 10^12 parameters has ten millions
_SHOWN = 5  # names in an error
_NUMBERED = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors")
# Of adapters, of Mistral's own code, whose tensors are called otherwise, and what is hidden.
_OTHERS = re.compile(r"(adapter|consolidated|\.).*")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class CheckpointFiles(NamedTuple):
    """The files, and which of them has a tensor that is in several, if an index says."""

    paths: Sequence[Path]
    places: Mapping[str, Path]


def find_files(directory: Path) -> CheckpointFiles:
    """The safetensors files of a checkpoint, or the GGUF file that it is.

    Raises:
        ModelError: there are none, one is missing, or more than one checkpoint could be meant.
    """
    if is_gguf(directory):
        return CheckpointFiles([directory], {})
    if not (directory / INDEX).exists() and (directory / WHOLE).exists():
        return CheckpointFiles([directory / WHOLE], {})
    indices = [path.name for path in sorted(directory.glob("*.safetensors.index.json"))]
    indices = [name for name in indices if not _OTHERS.fullmatch(name)]
    if INDEX in indices or len(indices) == 1:
        return _indexed(directory, INDEX if INDEX in indices else indices[0])
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    return CheckpointFiles([directory / name for name in _without_index(directory, names)], {})


def _without_index(directory: Path, names: Sequence[str]) -> Sequence[str]:
    """The files that are the checkpoint's."""
    own = [name for name in names if not _OTHERS.fullmatch(name)]
    if not own:
        raise ModelError(_no_weights(directory, names))
    numbered = [found for name in own if (found := _NUMBERED.fullmatch(name)) is not None]
    if any(found[1] == "model" for found in numbered):  # others may be copies of other types
        numbered = [found for found in numbered if found[1] == "model"]
        own = [found[0] for found in numbered]
    sets = {found.group(1, 3) for found in numbered}
    if len(sets) == 1 and len(numbered) == len(own):
        ((name, count),) = sets
        total, have = int(count), {int(found[2]): found[0] for found in numbered}
        wanted = range(1, total + 1) if total <= len(own) else range(1, len(own) + 2)
        missing = [number for number in wanted if number not in have]
        if missing or len(have) != total:
            first = f"{name}-{missing[0] if missing else total:0{len(count)}}-of-{count}"
            raise ModelError(
                f"{directory}: of {total:,} numbered files there are {len(own):,}; "
                f"{first}.safetensors is missing"
            )
    elif len(own) > 1:
        raise ModelError(
            f"{directory} has several safetensors files and no {INDEX} that tells which are its "
            f"weights: {_some(own)}"
        )
    return own


def _indexed(directory: Path, index: str) -> CheckpointFiles:
    """The files that an index names, all of them below its directory.

    The files may be links to anywhere, as in Hugging Face's cache: the directory's owner made
    those, while the index may come from anyone.
    """
    path = directory / index
    places = read_object(path, _MOST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{path} is not a safetensors index: weight_map must name files")
    files = sorted(set(places.values()))
    for name in files:
        file = PurePath(name)
        if file.is_absolute() or ".." in file.parts or file.suffix != ".safetensors":
            raise ModelError(f"{path} names {short(name)}, no .safetensors file beside it")
    missing = [name for name in files if not (directory / name).exists()]
    if missing == files and (directory / WHOLE).exists():  # it was put together since
        return CheckpointFiles([directory / WHOLE], {})
    if missing:
        raise ModelError(f"{directory}: {index} names files that are not there: {_some(missing)}")
    return CheckpointFiles(
        [directory / name for name in files],
        {tensor: directory / name for tensor, name in places.items()},
    )


def _no_weights(directory: Path, names: Sequence[str]) -> str:
    message = f"{directory} has neither {WHOLE} nor {INDEX}"
    if any(name.startswith("consolidated") for name in names):
        return (
            f"{message}; consolidated files are of Mistral's own code and call tensors otherwise: "
            "take the ones that transformers reads"
        )
    if any(name.startswith("adapter") for name in names):
        return f"{message}, but an adapter: serve the model that it is of, with --lora-modules"
    if any(any(directory.glob(pattern)) for pattern in _PICKLED):
        return (
            f"{message}; its pickled weights ({', '.join(_PICKLED)}) are not read, since loading "
            "them runs code. Convert them: "
            "transformers.AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    gguf = sorted(path.name for path in directory.glob("*.gguf"))
    if gguf:
        return f"{message}, but GGUF files: name one of them ({_some(gguf)})"
    return message


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
