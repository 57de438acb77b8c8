"""A model in one GGUF file, or in several as llama-gguf-split leaves it."""

from __future__ import annotations

import re
from pathlib import Path
from reprlib import repr as short

from quire.core.errors import ModelError
from quire.models.gguf.header import GGUFFile, TensorInfo, read_header

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MOST_PARTS = 1 << 10


def parts_of(path: Path) -> list[Path]:
    """The files of the model that ``path`` begins, by their names; none if it is a later part."""
    name = _NAME.fullmatch(path.name)
    if name is None or int(name[3]) > _MOST_PARTS:
        return [path]
    count = int(name[3])
    parts = (f"{name[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))
    return [path.with_name(part) for part in parts] if int(name[2]) == 1 else []


def open_gguf(path: Path) -> GGUFFile:
    """All that stands before the tensors; of a model in parts the first is named.

    Raises:
        ModelError: a file is damaged or missing, or holds what is not supported; names the field or
            tensor.
    """
    first = read_header(path)
    count = first.metadata.get("split.count", 0)
    if count in (0, 1):
        return first
    if type(count) is not int or not 0 < count <= _MOST_PARTS:
        raise ModelError(f"{path}: split.count must be 1 to {_MOST_PARTS:,}, but is {short(count)}")
    paths = parts_of(path)
    if len(paths) != count:
        raise ModelError(
            f"{path} is one of {count} parts of a model: name the first, which must be called "
            f"NAME-00001-of-{count:05}.gguf, with the others beside it"
        )
    tensors: dict[str, TensorInfo] = {}
    for number, own in enumerate(paths):
        _add_part(tensors, read_header(own) if number else first, number, count)
    told = first.metadata.get("split.tensors.count", len(tensors))
    if told != len(tensors):
        raise ModelError(
            f"{path}: split.tensors.count is {short(told)}, but its {count} parts have "
            f"{len(tensors):,} tensors"
        )
    return first._replace(tensors=tensors)


def _add_part(tensors: dict[str, TensorInfo], part: GGUFFile, number: int, count: int) -> None:
    for name, wanted in (("split.no", number), ("split.count", count)):
        found = part.metadata.get(name)
        if found != wanted:
            raise ModelError(f"{part.path}: {name} must be {wanted}, but is {short(found)}")
    twice = tensors.keys() & part.tensors.keys()
    if twice:
        raise ModelError(f"{part.path}: tensor {short(min(twice))} is in an earlier part as well")
    tensors.update(part.tensors)
