"""The text of each token of a vocabulary, and a bound for the words that a tokenizer caches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers.models import BPE, Unigram

_WORDS_KEPT = 2_000
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bound_words(backend: tokenizers.Tokenizer) -> None:
    """Keep fewer words than the library's 10,000: hostile ones take 8 KB each, for ever."""
    if isinstance(backend.model, (BPE, Unigram)):  # the others keep none
        backend.model._resize_cache(_WORDS_KEPT)


class Joining(NamedTuple):
    """How a decoder makes a text of its tokens, where it does no more than join their bytes.

    bytes_of: a token's, by its name.
    strips: spaces at the beginning of a text that it leaves out.
    """

    bytes_of: Callable[[str], bytes]
    strips: int = 0


class TokenTexts(dict[int, str]):
    """See ``Tokenizer.own_texts``; each is computed when it is first read.

    bytes: of a token's text after other tokens, by its id.
    strips: spaces that are removed from the beginning of a text; None: a text is more than the
        bytes of its tokens, joined.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        special_ids: frozenset[int],
        strips: int | None = None,
    ) -> None:
        super().__init__()
        self.bytes: Mapping[int, bytes] = _OwnBytes(bytes_of)
        self.strips = strips
        self._special_ids = special_ids

    def __missing__(self, token_id: int) -> str:
        text = ""
        if self.strips is not None and token_id not in self._special_ids:
            text = _whole(self.bytes[token_id]) or ""
        self[token_id] = text
        return text

    def join(self, token_ids: Iterable[int]) -> str:
        """The text of tokens; where bytes are no characters, a U+FFFD for each that was begun."""
        assert self.strips is not None
        text = b"".join(map(self.bytes.__getitem__, token_ids)).decode(errors="replace")
        return text[spaces(text, self.strips) :]

    def whole(self, token_id: int) -> bool:
        """Whether a token stands for whole characters."""
        return _whole(self.bytes[token_id]) is not None

    def named(self, token_id: int, begun: bytes = b"") -> str:
        """A token in answers, after the first bytes of a character that it may complete.

        Bytes that are not whole characters have the form of OpenAI's API.
        """
        if not begun and (anywhere := self[token_id]):
            return anywhere
        own = self.bytes[token_id]
        text = _whole(begun + own)
        if text is None and begun:
            text = _whole(own)
        return "bytes:" + "".join(map("\\x{:02x}".format, own)) if text is None else text


class _OwnBytes(dict[int, bytes]):
    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        super().__init__()
        self._bytes_of = bytes_of

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._bytes_of(token_id)
        return found


def own_texts(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> TokenTexts:
    """The texts of a tokenizer of the library."""
    joining = _joining(backend)
    if joining is None:
        return texts_in_place(
            lambda ids: backend.decode(ids, skip_special_tokens=False),
            backend.encode("a", add_special_tokens=False).ids,
            special_ids,
            backend.id_to_token,
        )

    def bytes_of(token_id: int) -> bytes:
        name = backend.id_to_token(token_id)
        return b"" if name is None else joining.bytes_of(name)

    return TokenTexts(bytes_of, special_ids, joining.strips)


def texts_in_place(
    decode: Callable[[list[int]], str],
    before: list[int],
    special_ids: frozenset[int],
    name_of: Callable[[int], str | None],
) -> TokenTexts:
    """For a tokenizer whose tokens depend on others: the text that each adds after ``before``."""
    start = decode(before)

    def bytes_of(token_id: int) -> bytes:
        if token_id in special_ids:
            return decode([token_id]).encode()
        text = decode([*before, token_id]).removeprefix(start)
        byte = _BYTE.fullmatch(name_of(token_id) or "") if "\ufffd" in text else None
        return bytes([int(byte[1], 16)]) if byte else text.encode()

    return TokenTexts(bytes_of, special_ids)


def spaces(text: str, most: int) -> int:
    """How many a text begins with, up to ``most``."""
    head = text[:most]
    return len(head) - len(head.lstrip(" "))


def _whole(data: bytes) -> str | None:
    """The text of these bytes; None where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _joining(backend: tokenizers.Tokenizer) -> Joining | None:
    """How its decoder joins tokens; None where it does more than that."""
    steps = _steps(backend.decoder)
    replaced: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        step = steps.pop(0)
        replaced.append((step["pattern"]["String"], step["content"]))

    def respelled(name: str) -> str:
        for old, new in replaced:
            name = name.replace(old, new)
        return name

    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Joining(lambda name: _byte_level(respelled(name)))
    falls_back = kinds[:1] == ["ByteFallback"]
    strips = 0
    match kinds[falls_back:]:
        case ["Fuse"]:
            pass
        case ["Fuse", "Strip"] if steps[-1]["content"] == " " and not steps[-1]["stop"]:
            strips = steps[-1]["start"]
        case _:
            return None
    if any(step["type"] == "ByteLevel" for step in _steps(backend.pre_tokenizer)):
        # A tokenizer of bytes, whose file names a decoder that cannot be its own.
        return Joining(_byte_level)

    def bytes_of(name: str) -> bytes:
        name = respelled(name)
        byte = _BYTE.fullmatch(name) if falls_back else None
        return name.encode() if byte is None else bytes([int(byte[1], 16)])

    return Joining(bytes_of, strips)


def _steps(part: object) -> list[dict[str, Any]]:
    """The steps of a decoder or a pre-tokenizer, one after the other."""
    if part is None:
        return []
    step = json.loads(part.__getstate__())  # type: ignore[attr-defined]
    steps = step.get("decoders", step.get("pretokenizers"))
    return [step] if steps is None else list(steps)


def _byte_level(name: str) -> bytes:
    """A token whose letters stand for bytes each; one with others is a text as it is."""
    try:
        return bytes(map(_BYTES.__getitem__, name))
    except KeyError:
        return name.encode()


def _letters() -> dict[str, int]:
    """GPT-2's letters for bytes: those that can be seen stand for themselves, the others follow."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _letters()
