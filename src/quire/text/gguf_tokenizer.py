"""The tokenizer that a GGUF file's metadata describes, with the tokens that llama.cpp makes.

Control tokens, and those by which texts end, are special: wherever their texts stand in a prompt
that is parsed, they are found whole. So are those that users of a tokenizer have added, which are
text beside. What no file says follows llama.cpp's names for it: where words are cut (``words``),
how texts begin, and which marks take the white space after them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from reprlib import repr as short
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from quire.core.errors import ModelError, reason
from quire.models.gguf import CONTROL, UNNAMED, WORDS, GGUFFile, Words, end_tokens, is_list

_LOG = logging.getLogger(__name__)
_MODELS = ("gpt2", "llama", _GEMMA_4 := "gemma4")
_NORMAL, _UNKNOWN, _ADDED = 1, 2, 4  # types of tokens, beside CONTROL
_FOUND_WHOLE = (_UNKNOWN, CONTROL, _ADDED)
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_OF_SENTENCEPIECE = {"unknown": 0, "bos": 1, "eos": 2}  # where the file does not say
_MOST_CHARACTERS = 1 << 10  # of a token that is merged of others; the longest have some hundreds
_MOST_RESPELLED = 1 << 8
_PHI_3 = "phi3"
_LEAVE_SPACES = ("<unk>", "<s>", "<|endoftext|>")  # after them; Phi-3's other marks take them
_SPACE = "▁"
_AS_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


class _Vocabulary(NamedTuple):
    """Tokens by their ids, and what kinds they are of."""

    file: GGUFFile
    kind: str  # of ``_MODELS``
    tokens: Sequence[str]
    types: Sequence[int]
    special: Mapping[str, int | None]  # by their names in ``_SPECIAL``
    prefixed: bool  # a space stands before texts that is none of theirs

    def token(self, name: str) -> str | None:
        at = self.special[name]
        return None if at is None else self.tokens[at]

    def decoded(self, token: str) -> str:
        """The text for which one stands that is found whole, at the beginning of a text."""
        text = token if self.kind == "gpt2" else token.replace(_SPACE, " ")
        return text.removeprefix(" ") if self.prefixed else text

    def error(self, name: str, reason: str) -> ModelError:
        return ModelError(f"{self.file.path}: tokenizer.ggml.{name} {reason}")


def read_tokenizer(file: GGUFFile) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer, and what would be in its ``tokenizer_config.json``.

    Raises:
        ModelError: the file has none, or an unsupported kind; or one of its control and added
    tokens is not found whole in a text, or is another text when it is decoded.
    """
    vocabulary = _read_vocabulary(file)
    words = _read_words(file) if vocabulary.kind == "gpt2" else Words((), begins=True)
    backend = _merging(vocabulary, words)
    if vocabulary.kind == "gpt2":
        _cut_words(backend, words)
    else:
        _set_spaces(backend, prefixed=vocabulary.prefixed)
    _add_whole_tokens(backend, vocabulary)
    named = {field: vocabulary.token(name) for name, field in _SPECIAL.items()}
    backend.post_processor = _around(
        named["bos_token"] if _begins(vocabulary, words) else None,
        named["eos_token"] if _flag(file, "add_eos_token", False) else None,
        backend,
    )
    return backend, {**named, "chat_template": _templates(file)}


def _read_vocabulary(file: GGUFFile) -> _Vocabulary:
    tokens = _list(file, "tokens", str)
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind not in _MODELS:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.model is {short(kind)}; supported: {', '.join(_MODELS)}. "
            "Another tokenizer can be given with --tokenizer"
        )
    types = [_NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in file.metadata:
        types = list(_list(file, "token_type", int, len(tokens)))
    for at in end_tokens(file.metadata):
        if isinstance(at, int) and 0 <= at < len(tokens):
            types[at] = CONTROL
    if kind != "gpt2":
        tokens = list(map(_spelled_in_spaces, tokens, types))
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens holds a token twice")
    special = {name: _special_id(file, name, kind, tokens) for name in _SPECIAL}
    prefixed = kind == "llama" and _flag(file, "add_space_prefix", True)
    return _Vocabulary(file, kind, tokens, types, special, prefixed)


def _spelled_in_spaces(token: str, kind: int) -> str:
    """Runs of spaces that are found whole, as they stand in texts; older files have the letter."""
    return " " * len(token) if kind == _ADDED and not token.strip(_SPACE) else token


def _read_words(file: GGUFFile) -> Words:
    """How texts are cut before bytes are merged."""
    name = file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        _LOG.warning(
            "%s has no tokenizer.ggml.pre, so that words are cut as llama.cpp's default has it, "
            "which may not be as the model was trained: convert it again, or give the model's own "
            "tokenizer with --tokenizer",
            file.path,
        )
        name = UNNAMED
    if not isinstance(name, str) or name not in WORDS:
        nearest = get_close_matches(short(name), WORDS, 5, 0.0)
        raise ModelError(
            f"{file.path}: tokenizer.ggml.pre is {short(name)}; supported: {len(WORDS)} names, the "
            f"nearest {', '.join(nearest)}. Another tokenizer can be given with --tokenizer"
        )
    return WORDS[name]


def _merging(vocabulary: _Vocabulary, words: Words) -> tokenizers.Tokenizer:
    """The model that makes tokens of a word."""
    ids = {token: at for at, token in enumerate(vocabulary.tokens)}
    how: dict[str, Any] = {"ignore_merges": words.whole}
    if vocabulary.kind != "llama":
        merges = [_pair(vocabulary, merge) for merge in _list(vocabulary.file, "merges", str)]
    else:
        merges = _merges_by_score(vocabulary)
    if vocabulary.kind != "gpt2":
        unknown = vocabulary.token("unknown")
        how = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    try:
        return tokenizers.Tokenizer(models.BPE(ids, merges, **how))
    except Exception as error:  # the library raises plain Exception, of merges of no tokens
        why = reason(error)
        raise ModelError(f"{vocabulary.file.path}: no tokenizer can be made: {why}") from error


def _pair(vocabulary: _Vocabulary, merge: str) -> tuple[str, str]:
    first, space, second = merge[1:].partition(" ")  # a token may begin with a space
    first = merge[:1] + first
    if not first or not space or not second:
        raise vocabulary.error("merges", f"must hold pairs of tokens, but holds {short(merge)}")
    return first, second


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """All pairs of which a token can be made, best token first, as SentencePiece merges them.

    Tokens that are found whole are never made of others, nor are those of bytes.
    """
    scores = _list(vocabulary.file, "scores", (float, int), len(vocabulary.tokens))
    plain = {
        token: at
        for at, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == _NORMAL
    }
    pairs: list[tuple[float, int, str, str]] = []
    for token, at in plain.items():
        if len(token) > _MOST_CHARACTERS:
            raise vocabulary.error(
                "tokens",
                f"holds one of {len(token):,} characters, token {at:,}; at most "
                f"{_MOST_CHARACTERS:,} are supported",
            )
        for cut in range(1, len(token)):
            first, second = token[:cut], token[cut:]
            if first in plain and second in plain:
                pairs.append((-scores[at], -cut, first, second))
    pairs.sort()
    return [(first, second) for _, _, first, second in pairs]


def _cut_words(backend: tokenizers.Tokenizer, words: Words) -> None:
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in words.expressions]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, _AS_BYTES])
    backend.decoder = decoders.ByteLevel()


def _set_spaces(backend: tokenizers.Tokenizer, *, prefixed: bool) -> None:
    """Treat spaces as llama.cpp does; ``prefixed``: one more at the beginning and after special
    tokens.
    """
    spaces = normalizers.Replace(" ", _SPACE)
    first = [normalizers.Prepend(_SPACE)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*first, spaces])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(" ", 1, 0)] if prefixed else [])]
    )


def _add_whole_tokens(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    """Add the tokens that are found before a text is cut."""
    architecture = vocabulary.file.metadata.get("general.architecture")
    takes_spaces = vocabulary.kind == "llama" and architecture == _PHI_3
    whole = {
        at: AddedToken(
            token,
            normalized=False,
            special=kind != _ADDED,
            rstrip=takes_spaces and token not in _LEAVE_SPACES,
        )
        for at, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in _FOUND_WHOLE and token
    }
    backend.add_tokens(list(whole.values()))
    if vocabulary.kind == "gpt2":
        _respell(backend, vocabulary, list(whole))
    _check(backend, vocabulary, list(whole))


def _respell(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, whole: list[int]) -> None:
    """Spell those in bytes that the decoder would take for bytes, since it knows their letters.

    Where that cannot be done without respelling others, it is left, and found in the check.
    """
    tokens = vocabulary.tokens
    texts = backend.decode_batch([[at] for at in whole], skip_special_tokens=False)
    wrong = {at: tokens[at] for at, text in zip(whole, texts, strict=True) if text != tokens[at]}
    if not wrong or len(wrong) > _MOST_RESPELLED:
        return
    inside = re.compile("|".join(map(re.escape, wrong.values())))
    if any(inside.search(token) for at, token in enumerate(tokens) if at not in wrong):
        return
    steps = []
    for token in wrong.values():
        ((spelled, _),) = _AS_BYTES.pre_tokenize_str(token)
        steps.append(decoders.Replace(token, spelled))
    backend.decoder = decoders.Sequence([*steps, decoders.ByteLevel()])


def _check(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, whole: list[int]) -> None:
    """ModelError unless each of these tokens is found whole in a text, and decodes to it."""
    tokens = [vocabulary.tokens[at] for at in whole]
    found = backend.encode_batch_fast(tokens, add_special_tokens=False)
    texts = backend.decode_batch([[at] for at in whole], skip_special_tokens=False)
    for at, token, encoding, text in zip(whole, tokens, found, texts, strict=True):
        kind = "an added" if vocabulary.types[at] == _ADDED else "a control"
        name = f"has {short(token)} as {kind} token ({at:,}), but"
        if encoding.ids != [at]:
            raise vocabulary.error("tokens", f"{name} its text has the tokens {encoding.ids}")
        if text != vocabulary.decoded(token):
            raise vocabulary.error("tokens", f"{name} it is decoded to {short(text)}")


def _list(
    file: GGUFFile, name: str, kind: type | tuple[type, ...], count: int | None = None
) -> Sequence[Any]:
    """A field that holds several values, ``count`` of them."""
    values: Any = file.metadata.get(f"tokenizer.ggml.{name}")
    if not is_list(values) or not values or not isinstance(values[0], kind):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.{name} must be a list, but is {short(values)}"
        )
    if count is not None and len(values) != count:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.{name} has {len(values):,} values for {count:,} tokens"
        )
    return values


def _special_id(file: GGUFFile, name: str, kind: str, tokens: Sequence[str]) -> int | None:
    """The id of a special token; None: there is none."""
    at = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if at is None:
        at = _OF_SENTENCEPIECE.get(name) if kind == "llama" else None
        return None if at is None or at >= len(tokens) else at
    if not isinstance(at, int) or not 0 <= at < len(tokens):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.{name}_token_id is {short(at)}, and there are "
            f"{len(tokens):,} tokens"
        )
    return at


def _flag(file: GGUFFile, name: str, default: bool) -> bool:
    return bool(file.metadata.get(f"tokenizer.ggml.{name}", default))


def _begins(vocabulary: _Vocabulary, words: Words) -> bool:
    """Whether a token stands before each text: in Gemma 4 always, as in llama.cpp."""
    always = vocabulary.kind == _GEMMA_4
    return always or _flag(vocabulary.file, "add_bos_token", words.begins)


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
