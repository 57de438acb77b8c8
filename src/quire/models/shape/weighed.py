"""What weights weigh in a checkpoint's files, by the headers of safetensors and of GGUF."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from quire.core.errors import ModelError
from quire.models.files import read_object
from quire.models.gguf import GGUFFile, kept_sizes
from quire.models.shape.model_shape import BYTES, ModelShape, WeightForm
from quire.models.shape.modules import modules_of
from quire.models.shape.planned import PARTS

_MOST_HEADER = 100 << 20  # bytes, as safetensors itself has it
_INDEX = "model.safetensors.index.json"
_FLOATS = {"F64", "F32", "BF16", "F16"}
"""Types of numbers that are loaded in the model's own."""

_SECOND_COPIES = ("consolidated", "adapter")
_TABLE = "table"
_GGUF_PARTS = (
    (_TABLE, re.compile(r"token_embd\.|per_layer_token_embd")),
    ("head", re.compile(r"output\.weight$")),
    ("experts", re.compile(r"blk\.\d+\.ffn_\w+_exps\.")),
    ("attention", re.compile(r"blk\.\d+\.attn_(?!norm)")),
    ("mlp", re.compile(r"blk\.\d+\.(ffn_(?!norm)|inp_gate|proj\.|laurel_[lr]\.)")),
)
_LAYER = re.compile(r"^(?:model\.|language_model\.|model\.language_model\.)*layers\.(\d+)\.")


class Weighed(NamedTuple):
    """Bytes of all weights of a GGUF file, and of one of each part."""

    num_bytes: int
    form: WeightForm


def weighed_gguf(file: GGUFFile, shape: ModelShape) -> tuple[Weighed, Weighed]:
    """The weights as the file has them, and as Quire keeps them."""
    stored = ((name, info.num_bytes) for name, info in file.tensors.items())
    kept = kept_sizes(file, BYTES[shape.dtype])
    return _by_parts(stored, shape), _by_parts(kept, shape)


def _by_parts(sizes: Iterable[tuple[str, float]], shape: ModelShape) -> Weighed:
    taken: Counter[str] = Counter()
    for name, size in sizes:
        part = next((part for part, words in _GGUF_PARTS if words.match(name)), "")
        taken[part] += math.ceil(size)
    params: Counter[str] = Counter()
    for module in modules_of(shape):
        params[module.part] += module.params
    given = 0 if shape.by_layer is None else shape.by_layer.given_table_params
    table = taken[_TABLE] / (shape.vocab_size * shape.hidden_size + given)
    means = {part: taken[part] / params[part] for part in PARTS if params[part]}
    attention, mlp, experts, head = (
        means[part] if taken[part] and part in means else table
        for part in PARTS  # a head that is the table: none; nor an MLP beside experts but routers
    )
    form = WeightForm("a GGUF file", attention, mlp, experts, head, table=table)
    return Weighed(taken.total(), form)


def weighed_safetensors(directory: Path, shape: ModelShape) -> int | None:
    """Bytes of a directory's weights, floats in the model's type; None: they are not all there.

    Layers above the model's, which guess further tokens, are left out: only speculation loads them.

    ModelError: a header is none.
    """
    if (directory / _INDEX).exists():
        index = read_object(directory / _INDEX)
        files = index.get("weight_map")
        names = sorted({str(name) for name in files.values()}) if isinstance(files, dict) else []
    else:
        found = (path.name for path in directory.glob("*.safetensors"))
        names = [name for name in sorted(found) if not name.startswith(_SECOND_COPIES)]
    paths = [directory / name for name in names if Path(name).name == name]
    if not paths or len(paths) < len(names) or not all(path.exists() for path in paths):
        return None
    return sum(size for path in paths for size in _sizes(path, shape))


def _sizes(path: Path, shape: ModelShape) -> Iterator[int]:
    for name, info in _header(path).items():
        layer = _LAYER.match(name)
        guesses = layer is not None and int(layer[1]) >= shape.num_layers
        copied = shape.tied_embeddings and name.endswith("lm_head.weight")
        if name == "__metadata__" or guesses or copied or name.startswith("mtp."):
            continue
        try:
            first, end = info["data_offsets"]
            numbers = math.prod(info["shape"]) if info["dtype"] in _FLOATS else 0
            yield int(numbers * BYTES[shape.dtype] or end - first)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: {name[:80]} has no type, shape and place") from error


def _header(path: Path) -> dict[str, Any]:
    """What is said of each tensor. ModelError: the file does not begin so."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelError(f"{path} is no plain file")
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= _MOST_HEADER:
                raise ModelError(f"{path} is no safetensors file")
            found = json.loads(file.read(size))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is no safetensors file")
    return found
