"""The tokenizer that a GGUF file's metadata describes.

Vocabulary and merges are put together by transformers. What it leaves to others, how texts begin
and where words are cut, follows llama.cpp's names for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from quire.errors import ModelError
from quire.files import one_line
from quire.gguf import GGUFFile

_MODELS = ("gpt2", "llama")
_SPLIT_BY_TRANSFORMERS = {
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "dbrx", "smaug-bpe",
    "tekken", "qwen2", "deepseek-r1-qwen", "kormo", "megrez", "gpt-4o", "llama4",
}  # fmt: skip
_SPLIT_AS_GPT2 = {
    "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "mpt", "olmo", "trillion",
    "granite-docling",
}  # fmt: skip
_SPLIT_BY_DIGITS = {
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
}
_BEGINS_BY_DEFAULT = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "tekken",
}
_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_tokenizer(file: GGUFFile) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """It, and what would be in its ``tokenizer_config.json``.

    Raises:
        ModelError: there is none, or of a kind that is not supported.
    """
    tokens = _list(file, "tokens", str)
    kind = file.metadata.get("tokenizer.ggml.model")
    split = file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind not in _MODELS:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.model is {short(kind)}; supported: {', '.join(_MODELS)}. "
            "Another tokenizer can be given with --tokenizer"
        )
    known = _SPLIT_BY_TRANSFORMERS | _SPLIT_AS_GPT2 | _SPLIT_BY_DIGITS
    if kind == "gpt2" and split not in known:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.pre is {short(split)}; supported: "
            f"{', '.join(sorted(known))}. Another tokenizer can be given with --tokenizer"
        )
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens holds a token twice")
    backend = _converted(file, kind, tokens)
    if kind == "gpt2" and split in _SPLIT_BY_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if kind == "llama":
        _set_spaces(backend, prefixed=_flag(file, "add_space_prefix", True))
    special = {name: _token(file, key, tokens) for key, name in _NAMES.items()}
    begins = kind == "llama" or split in _BEGINS_BY_DEFAULT
    backend.post_processor = _around(
        special["bos_token"] if _flag(file, "add_bos_token", begins) else None,
        special["eos_token"] if _flag(file, "add_eos_token", False) else None,
        backend,
    )
    return backend, {**special, "chat_template": _templates(file)}


def _converted(file: GGUFFile, kind: str, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
    except ImportError as error:
        raise ModelError(
            f"{file.path}: GGUF's tokenizers need a newer transformers: pip install -U transformers"
        ) from error
    given = {
        "tokenizer_type": kind,
        "pre_tokenizer_type": file.metadata.get("tokenizer.ggml.pre"),
        "tokens": list(tokens),
        "token_type": list(file.metadata.get("tokenizer.ggml.token_type", ())),
    }
    for name in ("scores", "merges"):
        if f"tokenizer.ggml.{name}" in file.metadata:
            given[name] = list(_list(file, name, str if name == "merges" else float))
    architecture = file.metadata.get("general.architecture")
    try:
        backend, _ = convert_gguf_tokenizer(str(architecture), given)
    except Exception as error:  # whatever it makes of damaged vocabularies
        raise ModelError(f"{file.path}: no tokenizer can be made: {one_line(error)}") from error
    return _without_others(backend, len(tokens))


def _without_others(backend: tokenizers.Tokenizer, count: int) -> tokenizers.Tokenizer:
    """Without the special tokens that transformers' classes add to a vocabulary that lacks them."""
    if backend.get_vocab_size() == count:
        return backend
    parts = json.loads(backend.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < count]
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def _set_spaces(backend: tokenizers.Tokenizer, *, prefixed: bool) -> None:
    """As llama.cpp has them; ``prefixed``: one more at the beginning and after special tokens."""
    spaces = normalizers.Replace(" ", "▁")
    first = [normalizers.Prepend("▁")] if prefixed else []
    backend.normalizer = normalizers.Sequence([*first, spaces])
    backend.pre_tokenizer = None
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(" ", 1, 0)] if prefixed else [])]
    )


def _list(file: GGUFFile, name: str, kind: type) -> Sequence[Any]:
    values: Any = file.metadata.get(f"tokenizer.ggml.{name}")
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not values or not isinstance(values[0], kind):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.{name} must be a list, but is {short(values)}"
        )
    return values  # type: ignore[no-any-return]


def _token(file: GGUFFile, key: str, tokens: Sequence[str]) -> str | None:
    """By its id, where there is one."""
    at = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if at is None:
        return None
    if not isinstance(at, int) or not 0 <= at < len(tokens):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.{key}_token_id is {short(at)}, and there are "
            f"{len(tokens):,} tokens"
        )
    return tokens[at]


def _flag(file: GGUFFile, name: str, default: bool) -> bool:
    return bool(file.metadata.get(f"tokenizer.ggml.{name}", default))


def _around(
    first: str | None, last: str | None, backend: tokenizers.Tokenizer
) -> processors.PostProcessor:
    """Tokens that are put around each text."""
    text = " ".join(part for part in (first and f"{first}:0", "$A:0", last and f"{last}:0") if part)
    ids = [(token, backend.token_to_id(token)) for token in (first, last) if token]
    return processors.TemplateProcessing(
        single=text, pair=f"{text} $B:1", special_tokens=list(dict(ids).items())
    )


def _templates(file: GGUFFile) -> str | list[Mapping[str, Any]] | None:
    default = file.metadata.get("tokenizer.chat_template")
    with_tools = file.metadata.get("tokenizer.chat_template.tool_use")
    if with_tools is None:
        return default
    return [
        {"name": "default", "template": default},
        {"name": "tool_use", "template": with_tools},
    ]
