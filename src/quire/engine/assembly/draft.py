"""The draft model of an engine: found, loaded, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tokenizers

from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import ConfigError, ModelError
from quire.engine.assembly.loading import cache_shape, dtype_name
from quire.engine.capacity import DraftShare, size_of
from quire.engine.config import EngineConfig
from quire.execution.device_runtime import Draft
from quire.models.base import Model
from quire.models.config import read_config
from quire.models.demo import DEMO_DRAFT
from quire.models.gguf import is_gguf
from quire.models.loader import resolve_model
from quire.models.shape import CacheShape
from quire.text.tokenizer import Tokenizer, load_tokenizer

DEMO_DRAFT_NAME = "quire-demo's draft"

Load = Callable[[Path, int | None, str | None], Model]
"""A directory, the longest text (None: a window decides) and a quantization -> a model."""


def draft_name(speculation: SpeculativeConfig) -> str:
    """The draft model's name, for people."""
    return speculation.model or DEMO_DRAFT_NAME


def draft_directory(config: EngineConfig) -> Path:
    """Where the draft model is that ``config`` asks for."""
    speculation = config.speculation
    if speculation is None or speculation.model is None:
        return DEMO_DRAFT
    return resolve_model(speculation.model, speculation.revision, config.download_dir)


def load_draft(config: EngineConfig, target: Model, tokenizer: Tokenizer, load: Load) -> Model:
    """The draft model that ``config`` asks for.

    Raises:
        ConfigError: it cannot draft for ``target``, whose texts are ``tokenizer``'s.
        ModelError: it cannot be used.
    """
    speculation = config.speculation
    assert speculation is not None
    with _named(draft_name(speculation)):
        directory = draft_directory(config)
        read_config(directory)  # first: a directory without one may be anything
        own = None
        if directory != DEMO_DRAFT:
            own = _vocabulary(directory)
            _check_words(own, tokenizer)
        longest = target.max_positions if config.window is None else None
        draft = load(directory, longest, speculation.quantization)
        check_draft(draft, target, own, config.tensor_parallel_size)
    return draft


def check_draft(
    draft: Model, target: Model, vocabulary: Mapping[str, int] | None, ranks: int = 1
) -> None:
    """ConfigError where a loaded model cannot draft for ``target``, of which each rank has a part.

    vocabulary: its tokenizer's.
    """
    if not draft.has_head:
        raise ConfigError("it has no head for tokens (it gives embeddings): choose one that has")
    if not target.has_head:
        raise ConfigError("there is nothing to draft for a model that has no head for tokens")
    if draft.weight_bytes >= target.weight_bytes * ranks:
        raise ConfigError(
            f"its weights take {size_of(draft.weight_bytes)}, those of the model it drafts for "
            f"{size_of(target.weight_bytes * ranks)}: choose a smaller one, a tenth is usual"
        )
    if vocabulary is None and draft.vocab_size != target.vocab_size:
        raise ConfigError(
            f"it has no tokenizer, and {draft.vocab_size:,} tokens where the model that it drafts "
            f"for has {target.vocab_size:,}: choose one of the same family"
        )
    if vocabulary and max(vocabulary.values()) >= draft.vocab_size:
        raise ConfigError(
            f"its tokenizer has {len(vocabulary):,} tokens, the model only {draft.vocab_size:,}"
        )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the draft model in refusals."""
    try:
        yield
    except (ConfigError, ModelError) as error:
        error.args = (f"speculative_config: model {name}: {error}",)
        raise


def _vocabulary(directory: Path) -> Mapping[str, int] | None:
    """The ids of a tokenizer's tokens; None: the directory has no tokenizer.json.

    A GGUF file has a tokenizer.
    """
    if not is_gguf(directory) and not (directory / "tokenizer.json").exists():
        return None
    return _ids(load_tokenizer(directory))


def _ids(tokenizer: Tokenizer) -> Mapping[str, int] | None:
    text = tokenizer.to_json()
    return None if text is None else tokenizers.Tokenizer.from_str(text).get_vocab()


def _check_words(own: Mapping[str, int] | None, tokenizer: Tokenizer) -> None:
    """ConfigError where ids stand for other texts than the target's."""
    theirs = _ids(tokenizer)
    if own is None or theirs is None or own == theirs:
        return
    token = min(
        (token for token in {*own, *theirs} if own.get(token) != theirs.get(token)),
        key=lambda token: (theirs.get(token, len(theirs)), token),
    )
    there, here = (
        "missing" if ids.get(token) is None else f"token {ids[token]:,}" for ids in (own, theirs)
    )
    raise ConfigError(
        f"it has another vocabulary: {token!r} is {there}, and {here} of the model that it drafts "
        "for: choose one with the same tokenizer, or method suffix, which needs no model"
    )


def with_draft(config: EngineConfig, cache: CacheShape, draft: Draft) -> CacheShape:
    """What both models keep. ConfigError: they cannot together."""
    assert config.speculation is not None
    with _named(draft_name(config.speculation)):
        return cache.with_draft(cache_shape(draft.model, draft.kv_dtype))


def draft_share(config: EngineConfig, draft: Draft) -> DraftShare:
    """What of an engine's memory is the draft model's."""
    assert config.speculation is not None
    cache = cache_shape(draft.model, draft.kv_dtype)
    return DraftShare(
        model_name=draft_name(config.speculation),
        dtype=dtype_name(draft.model.dtype),
        quantization=config.speculation.quantization,
        weight_bytes=draft.model.weight_bytes,
        kv_bytes_per_token=cache.bytes_per_token,
        num_layers=len(cache.windows),
    )
