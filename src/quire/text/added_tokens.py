"""Tokens in a model's other files, joined with those of its ``tokenizer.json``.

Which texts are tokens by themselves, which of those are special, and which of them ends a text is
in ``tokenizer_config.json``, or in older models' ``special_tokens_map.json`` and
``added_tokens.json``. If files contradict each other, ``tokenizer_config.json`` wins, then
``tokenizer.json``, then the older ones, as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any

import tokenizers
from tokenizers import AddedToken

from quire.core.errors import ModelError
from quire.models.files import read_object

_CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_NUMBERED = "added_tokens_decoder"
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FIRST = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_settings(directory: Path) -> dict[str, Any]:
    """The fields of ``tokenizer_config.json``, and special tokens from the files beside it.

    Raises:
        ModelError: a file is not a JSON object.
    """
    config = _read(directory, _CONFIG)
    named = {name: value for name, value in _read(directory, _MAP).items() if _names_tokens(name)}
    return {**named, **config} if _NUMBERED in config else {**config, **named}


def join_tokens(
    backend: tokenizers.Tokenizer, directory: Path, settings: Mapping[str, Any]
) -> None:
    """Add to ``backend`` the tokens that its own file lacks.

    Raises:
        ModelError: a token is invalid, or is to have an id that is not the next one; names both.
    """
    known = backend.get_added_tokens_decoder()
    named = {token.content: token for token in _named(settings)}
    numbered = {
        at: token
        for at, token in _numbered(directory, settings, named, known)
        if repr(known.get(at)) != repr(token)
    }
    new = [at for at, token in numbered.items() if backend.token_to_id(token.content) is None]
    contents = {token.content for token in (*known.values(), *numbered.values())}
    rest = [token for content, token in named.items() if content not in contents]
    backend.add_tokens([*numbered.values(), *rest])
    for at in new:
        content = numbered[at].content
        found = backend.token_to_id(content)
        if found != at:
            raise ModelError(
                f"{directory}: {short(content)} is to be token {at:,} and is none of "
                f"tokenizer.json's, of which the next is {found:,}"
            )


def end_names(directory: Path) -> frozenset[str]:
    """The tokens that end a text by the tokenizer's files; some may not exist."""
    given = (_read(directory, name).get("eos_token") for name in (_CONFIG, _MAP))
    return frozenset(filter(None, map(content_of, given)))


def content_of(token: object) -> str:
    """The text of a token, given as a text or as an object; "" for anything else."""
    given = token.get("content") if isinstance(token, dict) else token
    return given if isinstance(given, str) else ""


def _read(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    return read_object(path) if path.exists() else {}


def _names_tokens(field: str) -> bool:
    return field.endswith("_token") or field in _LISTS


def _numbered(
    directory: Path,
    settings: Mapping[str, Any],
    named: Mapping[str, AddedToken],
    known: Mapping[int, AddedToken],
) -> Iterator[tuple[int, AddedToken]]:
    """Tokens with their ids, which come in order."""
    source = f"{directory}/{_CONFIG if _NUMBERED in settings else _ADDED}"
    given = settings.get(_NUMBERED)
    if given is None:
        by_text = _read(directory, _ADDED)
        by_id = {_id(at, source): named.get(text, text) for text, at in by_text.items()}
        given = {at: token for at, token in by_id.items() if at not in known}
    if not isinstance(given, dict):
        raise ModelError(f"{source}: {_NUMBERED} must be an object, but is {short(given)}")
    ids = {_id(at, source): token for at, token in given.items()}
    for at in sorted(ids):
        yield at, _token(ids[at], source, special=False)


def _named(settings: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Special tokens by what they are for, which have no ids there."""
    others = (field for field in settings if field.endswith("_token") and field not in _FIRST)
    given = [settings.get(field) for field in (*_FIRST, *others)]
    for field in _LISTS:
        more = settings.get(field)
        given += more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    for token in given:
        if content_of(token):
            yield _token(token, _CONFIG, special=True)


def _id(given: object, source: str) -> int:
    try:
        return int(given)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise ModelError(f"{source}: {short(given)} is no token's id") from None


def _token(given: Any, source: str, *, special: bool) -> AddedToken:
    """special: whether it is special if its file does not say; true: it is in any case."""
    if isinstance(given, AddedToken):
        return given
    flags = (
        {name: given[name] for name in _FLAGS if name in given} if isinstance(given, dict) else {}
    )
    content = content_of(given)
    if not content or not all(isinstance(flag, bool) for flag in flags.values()):
        raise ModelError(f"{source}: {short(given)} is no token")
    return AddedToken(content, **{**flags, "special": special or flags.get("special", False)})
