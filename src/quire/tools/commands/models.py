"""``quire models``: the cached models, which can be served, and for how many users."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from quire.core.errors import ConfigError, ModelError
from quire.models.gguf import is_gguf, parts_of
from quire.models.hub import CachedModel, cache_directory, cached_models
from quire.models.shape import read_shape
from quire.settings import check_count
from quire.tools.commands.command import Command
from quire.tools.commands.fitting import free_for_models, room_for, suggest
from quire.tools.commands.pull import add_download_dir
from quire.tools.commands.text import size, table
from quire.tools.terminal.screen import harmless

_DEMO = "the demonstration model"
_ROUNDED = {"int8": 0.55, "int4": 0.32}  # of 16-bit weights that rounding leaves, scales included


@dataclass(frozen=True)
class Report:
    """The facts about a cached model."""

    name: str
    directory: str
    weight_bytes: int
    served_by: str | None = None  # Quire's own code, or transformers; None: neither
    max_model_len: int | None = None  # of one text on this machine; None: it does not fit
    users: int | None = None  # conversations of --tokens at once
    users_at_longest: int | None = None
    note: str | None = None  # why a figure is missing


def add_models(parser: argparse.ArgumentParser) -> None:
    add_download_dir(parser)
    parser.add_argument(
        "--tokens", type=int, default=2048, metavar="TOKENS", help="length of the conversations "
        "with which users are counted (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def models(arguments: argparse.Namespace) -> int:
    """Print a line for each model; the exit status."""
    check_count("tokens", arguments.tokens)

    from quire.execution.device import choose_device

    is_gpu = choose_device("auto").type == "cuda"
    memory, share = free_for_models(is_gpu)
    reports = [
        _report(model, memory, share, arguments.tokens) for model in _found(arguments.download_dir)
    ]
    if arguments.json:
        values = {"memory_bytes": memory, "tokens": arguments.tokens}
        print(json.dumps({**values, "models": [asdict(one) for one in reports]}, indent=1))
        return 0
    where = "the GPU" if is_gpu else "main memory"
    print(harmless("\n".join(_table(reports, arguments.tokens))))
    print(f"\n{size(memory)} of {where} are free; users are counted for quire serve's defaults.")
    if len(reports) == 1:
        cache = cache_directory(arguments.download_dir)
        print(f"There is no other model in {cache}: quire pull NAME downloads one.\n")
        print("\n".join(suggest(memory, share, is_gpu=is_gpu)))
    return 0


def _found(download_dir: str | None) -> Iterator[CachedModel]:
    from quire.models.demo import DEMO_MODEL

    yield CachedModel(_DEMO, "", DEMO_MODEL)
    for model in cached_models(download_dir):
        files = sorted(model.directory.glob("*.gguf"))
        if not files or any(model.directory.glob("*.safetensors")):
            yield model
        for file in filter(parts_of, files):
            yield CachedModel(f"{model.name}:{file.name}", model.revision, file)


def _report(model: CachedModel, memory: int, share: float, tokens: int) -> Report:
    files: Iterable[Path] = model.directory.glob("*.safetensors")
    weights = parts_of(model.directory) if is_gguf(model.directory) else files
    weight_bytes = sum(file.stat().st_size for file in weights if file.exists())
    found = Report(model.name, str(model.directory), weight_bytes)
    try:
        served_by, is_encoder = _served_by(model.directory)
        found = replace(found, served_by=served_by)
    except ModelError as error:
        return replace(found, note=str(error))
    if is_encoder:
        return replace(found, note="an encoder: it embeds or scores texts, and keeps no KV cache")
    try:
        shape = read_shape(model.directory)
        if shape.planned_only:
            return replace(found, note="what fits is unknown: transformers keeps its cache")
        cache = shape.as_quire_keeps().cache()
    except (ModelError, ConfigError) as error:
        return replace(found, note=f"what fits is unknown: {error}")
    room = room_for(cache, weight_bytes, memory, share, tokens)
    if room is None:
        return replace(found, note=_too_large(found, memory))
    longest, users, at_longest = room
    return replace(found, max_model_len=longest, users=users, users_at_longest=at_longest)


def _served_by(directory: Path) -> tuple[str, bool]:
    """What would run the model, and whether it is an encoder. ModelError: nothing would."""
    from quire.models.config import read_config
    from quire.models.loader import check_servable, is_encoder

    return check_servable(directory), is_encoder(read_config(directory))


def _too_large(model: Report, memory: int) -> str:
    text = f"its weights take {size(model.weight_bytes)}, and {size(memory)} are free"
    if model.served_by == "Quire":
        for name, share in _ROUNDED.items():
            if model.weight_bytes * share < 0.9 * memory:
                return f"{text}; with --quantization {name} it would fit"
    return text


def _table(reports: list[Report], tokens: int) -> list[str]:
    rows = [["model", "weights", "served by", "longest text", f"users at {tokens:,}",
             "at the longest"]]  # fmt: skip
    rows += [
        [
            one.name,
            size(one.weight_bytes),
            one.served_by or "-",
            *(_figure(count) for count in (one.max_model_len, one.users, one.users_at_longest)),
        ]
        for one in reports
    ]
    lines = table(rows, "")
    notes = [f"  {one.name}: {one.note}" for one in reports if one.note]
    return [*lines, *([""] if notes else []), *notes]


def _figure(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


COMMAND = Command(add_models, models)
