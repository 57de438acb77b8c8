"""What weights weigh in a checkpoint's files, by the headers of safetensors and of GGUF."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ModelError
from quire.models.files import open_plain, read_header, read_object
from quire.models.gguf import GGUFFile, kept_sizes
from quire.models.shape.model_shape import BYTES, ModelShape, WeightForm
from quire.models.shape.modules import modules_of
from quire.models.shape.planned import PARTS

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

    ModelError: a file is no whole safetensors file.
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
    try:
        with open_plain(path) as file:
            tensors = read_header(path, file)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    for name, stored in tensors.items():
        layer = _LAYER.match(name)
        guesses = layer is not None and int(layer[1]) >= shape.num_layers
        copied = shape.tied_embeddings and name.endswith("lm_head.weight")
        if guesses or copied or name.startswith("mtp."):
            continue
        if stored.type in _FLOATS:
            yield int(math.prod(stored.shape) * BYTES[shape.dtype])
        else:
            yield stored.end - stored.begin
