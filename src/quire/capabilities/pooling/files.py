"""What vectors a model gives, by its files: sentence-transformers', and its config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from quire.capabilities.pooling.pooler import Pooler
from quire.core.errors import ConfigError, ModelError, RequestError, shown
from quire.models.config import ModelConfig
from quire.models.dense import Dense, read_dense
from quire.models.files import read_json
from quire.models.shape import ConfigFields, read_fields
from quire.text.added_tokens import content_of, read_settings
from quire.text.params import Pooling, PoolingParams
from quire.text.tokenizer import Tokenizer

_WIDTHS = (
    "word_embed_proj_dim",
    "hidden_size",
    "n_embd",
    "d_model",
    "dim",
)  # of what the head is given
# Of sentence-transformers' Pooling.
_MODES = {
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
}
_NAMED = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN, "cls": Pooling.CLS, "max": Pooling.MAX}


def read_pooler(
    directory: Path,
    config: ModelConfig,
    tokenizer: Tokenizer,
    admit: Callable[[int], None],
    usual: Pooling = Pooling.LAST,
    given: Mapping[str, Any] | None = None,
) -> tuple[Pooler, tuple[Dense, ...]]:
    """The pooler that ``modules.json`` describes, or else ``usual``, normalised; and dense modules.

    admit: called with the bytes of the modules, to refuse them.
    given: a ``pooler_config``, which wins over the files.

    Raises:
        ConfigError: ``given`` asks for vectors that the model does not have.
        ModelError: a file is not what it should be.
    """
    fields = config.fields
    width = next((fields.positive(name) for name in _WIDTHS if name in fields), 0)
    modules = _read_modules(directory, usual)
    pooling, why_not, dense = modules.pooling, modules.why_not, list[Dense]()
    given = given or {}
    if "pooling_type" in given:
        pooling, why_not = Pooling[given["pooling_type"]], ""
    if not why_not:
        for path in modules.dense:
            dense.append(read_dense(path, dense[-1].width if dense else width, admit))
    pooler = Pooler(
        dense[-1].width if dense else width,
        pooling,
        given.get("normalize", modules.normalize),
        shorter=_shorter(fields),
        classes=_classes(fields, tokenizer),
        ending=_ending(directory, tokenizer),
        why_not=why_not,
    )
    dimensions = given.get("dimensions")
    if dimensions is not None:
        try:
            filled = pooler.filled(PoolingParams(dimensions=dimensions))
        except RequestError as error:
            raise ConfigError(f"pooler_config: {error}") from error
        pooler = pooler.with_dimensions(filled.dimensions)
    return pooler, tuple(dense)


def bytes_of(dense: Iterable[Dense]) -> int:
    """Bytes of the modules' weights."""
    return sum(one.nbytes for one in dense)


class _Modules(NamedTuple):
    """What ``modules.json`` says. why_not: the reason if there can be no vectors."""

    pooling: Pooling
    normalize: bool
    dense: Sequence[Path] = ()
    why_not: str = ""


def _read_modules(directory: Path, usual: Pooling) -> _Modules:
    path = directory / "modules.json"
    if not path.exists():
        return _Modules(usual, normalize=True)
    found = _Modules(usual, normalize=False)
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(one, Mapping) for one in modules):
        raise ModelError(f"{path} must be a list of modules")
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling, why_not = _read_pooling(_below(directory, module.get("path")))
            found = found._replace(pooling=pooling, why_not=found.why_not or why_not)
        elif kind == "Normalize":
            found = found._replace(normalize=True)
        elif kind == "Dense" and not found.normalize:
            found = found._replace(dense=[*found.dense, _below(directory, module.get("path"))])
        elif kind not in ("Transformer", "Dropout") and not found.why_not:
            after = " after Normalize" if kind == "Dense" else ""
            why_not = (
                f"modules.json asks for a module {shown(kind)}{after}, which Quire does not have"
            )
            found = found._replace(why_not=why_not)
    return found


def _below(directory: Path, name: object) -> Path:
    """The directory of a module's files. ModelError: it is not below ``directory``."""
    path = PurePosixPath(str(name))
    if not isinstance(name, str) or path.is_absolute() or ".." in path.parts:
        raise ModelError(f"{directory / 'modules.json'} names {shown(name)}, no path below it")
    return directory / path


def _read_pooling(directory: Path) -> tuple[Pooling, str]:
    """What a Pooling module does; why it cannot be done here, if so."""
    fields = read_fields(directory / "config.json")
    if "pooling_mode" in fields:
        asked = fields.values["pooling_mode"]
        modes = [asked] if isinstance(asked, str) else list(asked)
        found = [_NAMED.get(mode) for mode in modes]
    else:
        modes = [
            n for n, on in fields.values.items() if n.startswith("pooling_mode_") and on is True
        ]
        found = [_MODES.get(mode) for mode in modes]
    if len(found) == 1 and found[0] is not None:
        return found[0], ""
    names = " and ".join(map(shown, modes)) or "none"
    return (
        Pooling.LAST,
        f"it pools by {names}; Quire has lasttoken, mean, cls and max, one at a time",
    )


def _shorter(fields: ConfigFields) -> Sequence[int] | None:
    """See ``Pooler.shorter``; vLLM's names."""
    lengths = fields.get("matryoshka_dimensions", list, [])
    if not all(type(length) is int and length > 0 for length in lengths):
        raise fields.wrong("matryoshka_dimensions", "a list of numbers above zero")
    if lengths:
        return tuple(lengths)
    return None if fields.get("is_matryoshka", bool, False) else ()


def _ending(directory: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The end of sequence, where ``add_eos_token`` asks for it and the tokenizer does not write it.

    Embedding models say so of every text; those that generate mean their training.
    """
    settings = read_settings(directory)
    if settings.get("add_eos_token") is not True:
        return ()
    end = tokenizer.token_id(content_of(settings.get("eos_token")))
    return () if end is None or tokenizer.encode("a")[-1:] == [end] else (end,)


def _classes(fields: ConfigFields, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """See ``Pooler.classes``; vLLM's name for it."""
    names = fields.get("classifier_from_token", list, [])
    if not names:
        return None
    ids = [tokenizer.token_id(name) if isinstance(name, str) else None for name in names]
    if len(ids) != 2 or ids[0] is None or ids[1] is None:
        raise fields.wrong("classifier_from_token", "two tokens, for no and for yes")
    return ids[0], ids[1]
