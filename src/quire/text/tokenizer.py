"""Text to tokens and back, through ``tokenizers`` and the model's own chat template."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import tokenizers
from tokenizers.models import BPE, Unigram

from quire.core.errors import ModelError, RequestError, reason
from quire.models.files import check_plain
from quire.models.gguf import is_gguf, open_gguf
from quire.text.added_tokens import end_names, join_tokens, read_settings
from quire.text.chat_template import ChatTemplate, Message, render
from quire.text.gguf_tokenizer import read_tokenizer
from quire.text.longest_token import longest_token
from quire.text.pairs import Pair, longest_first, room_between
from quire.text.sandbox import Renderer

_WORDS_KEPT = 2_000
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PANIC = "PanicException"  # pyo3's; no module has it


@contextmanager
def _whatever_happens() -> Iterator[None]:
    """Make an error of a request of what its text leads the library's Rust code to give up at, as
    a search that takes too long. What pyo3 raises then passes by ``except Exception``.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise RequestError(f"the model's tokenizer gave up: {reason(error)}", "prompt") from None


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
    """The text that each token adds after ``before``, where texts of tokens depend on others."""
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


# What reads SentencePiece's files, and what it is imported as.
_SENTENCEPIECE = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
# Older versions of transformers, which do not know it, tidy the texts of BPEs as others'.
_FOR_BPE_TOO = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
_MOST_BYTES = 256 << 20  # of a tokenizer.json; the largest have some tens of millions


class Tokenizer(Protocol):
    """The interface of a tokenizer for the engine. Any thread may call it."""

    @property
    def longest_token(self) -> int | None:
        """Most characters of a text that one token can stand for; None: any number."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that ``skip_special_tokens`` leaves out."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a text by the tokenizer's files, whatever the model's say."""
        ...

    @property
    def own_texts(self) -> TokenTexts:
        """The text that a token adds anywhere, by its id; "" if that depends on others."""
        ...

    @property
    def chat_template(self) -> str:
        """The chat template's source, "" if there is none."""
        ...

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """The model files' declaration of answers, in transformers' form."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def encode_pair(self, first: str, second: str, most: int | None = None) -> Pair:
        """Two texts as one prompt; cut, the longer first, to ``most`` tokens in all.

        RequestError for fewer than the special ones around them and one of each.
        """
        ...

    def count(self, text: str) -> int:
        """Tokens of a text without special tokens around it."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_id(self, token: str) -> int | None:
        """The id of a token; None: there is no such token."""
        ...

    def to_json(self) -> str | None:
        """The text of a tokenizer.json for it; None where there is none."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        max_characters: float = math.inf,
    ) -> str:
        """The messages as one prompt text; RequestError if the template refuses them.

        So it is if the text would have more than ``max_characters``. Of the template's
        ``variables``, ``add_generation_prompt`` is true if left out, ``continue_final_message``
        ends the text with the last message, and ``chat_template`` is another template's text.
        """
        ...


def load_tokenizer(
    directory: Path, chat_template: str | None = None, renderer: Renderer | None = None
) -> Tokenizer:
    """The tokenizer in ``directory``; its chat template may be replaced by another's text.

    It may be a GGUF file. ``tokenizer.json`` is read directly; a directory without one goes through
    transformers. renderer: see ``ChatTemplate``.
    """
    try:
        with _whatever_happens():
            return _load(directory, chat_template, renderer)
    except RequestError as error:  # with no text at all
        raise ModelError(f"{directory}: {error}") from None


def _load(directory: Path, chat_template: str | None, renderer: Renderer | None) -> Tokenizer:
    if is_gguf(directory):
        backend, config = read_tokenizer(open_gguf(directory))
        template = ChatTemplate.load(directory, config, chat_template, renderer)
        return JsonTokenizer(backend, template, filter(None, [config["eos_token"]]))
    settings = read_settings(directory)
    template = ChatTemplate.load(directory, settings, chat_template, renderer)
    path = directory / "tokenizer.json"
    if not path.exists():
        return _load_with_transformers(directory, template)
    check_plain(path, _MOST_BYTES)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} is not a tokenizer: {reason(error)}") from error
    join_tokens(backend, directory, settings)
    return JsonTokenizer(backend, template, end_names(directory))


def tells_types(directory: Path) -> bool:
    """Whether models with this tokenizer know which text of a pair a token is in.

    If ``tokenizer_config.json`` does not say so, its class does, which transformers knows.
    """
    names = transformers_tokenizer(directory).model_input_names
    return "token_type_ids" in names


class _Templated:
    """A tokenizer's chat template, which may be missing."""

    def __init__(self, template: ChatTemplate | None) -> None:
        self._template = template
        self.chat_template = "" if template is None else template.source
        self.response_template = None if template is None else template.declared

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        max_characters: float = math.inf,
    ) -> str:
        return render(self._template, messages, variables, max_characters)


class JsonTokenizer(_Templated):
    """A ``tokenizer.json``."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None,
        ends: Iterable[str] = (),
    ) -> None:
        """ends: tokens that end a text; those that are none are left out."""
        super().__init__(template)
        backend.no_padding()
        backend.no_truncation()
        bound_words(backend)
        self._backend = backend
        self.longest_token = longest_token(backend)
        self.special_ids = _left_out(backend)
        self.own_texts = own_texts(backend, self.special_ids)
        ids = map(backend.token_to_id, ends)
        self.end_ids = frozenset(id for id in ids if id is not None)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # Unlike encode, encode_batch_fast lets other threads run.
        with _whatever_happens():
            (one,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return one.ids

    def encode_pair(self, first: str, second: str, most: int | None = None) -> Pair:
        with _whatever_happens():
            a, b = self._backend.encode_batch_fast([first, second], add_special_tokens=False)
            if most is None:
                whole = self._backend.post_process(a, b)
                return Pair.of_types(whole.ids, whole.type_ids)
            one, other = self._backend.encode_batch_fast(["a", "b"], add_special_tokens=False)
            form = self._backend.post_process(one, other)
        if not (len(one) and len(other)):
            text = "pairs cannot be cut: this model's tokenizer knows no a and no b"
            raise RequestError(text, "truncate_prompt_tokens")
        room = room_between(most, self._backend.num_special_tokens_to_add(True))
        kept = longest_first(len(a), len(b), room)
        # Not by the library, which keeps all that it cuts off, each piece beside each of the other
        # text's: gigabytes, of texts of some kilobytes.
        texts, begins, met = iter((a.ids[: kept[0]], b.ids[: kept[1]])), (0, len(one)), 0
        ids, types = list[int](), list[int]()
        both = zip(form.ids, form.type_ids, form.special_tokens_mask, strict=True)
        for id, type, special in both:
            own = [id] if special else next(texts) if met in begins else []
            met += not special
            ids += own
            types += [type] * len(own)
        return Pair.of_types(ids, types)

    def count(self, text: str) -> int:
        with _whatever_happens():
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self.own_texts.strips is None:
            with _whatever_happens():
                return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        dropped = self.special_ids if skip_special_tokens else ()
        return self.own_texts.join(id for id in token_ids if id not in dropped)

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def to_json(self) -> str | None:
        return self._backend.to_str()


def _left_out(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """The tokens without which texts are decoded where special ones are skipped.

    Also those that ``tokenizer.json`` says are special and another file says are not: the library
    goes on leaving them out.
    """
    added = backend.get_added_tokens_decoder()
    return frozenset(
        id
        for id, token in added.items()
        if token.special or backend.decode([id]) != backend.decode([id], skip_special_tokens=False)
    )


class ConvertedTokenizer(JsonTokenizer):
    """One that transformers has made of other files, and whose texts it may tidy."""

    def __init__(self, owner: Any, template: ChatTemplate | None) -> None:
        super().__init__(owner.backend_tokenizer, template, filter(None, [owner.eos_token]))
        self._backend.encode_special_tokens = owner.split_special_tokens
        self._owner = owner
        self._tidies = _tidies(owner)
        if self._tidies:  # what is tidied depends on what is around it
            before = self.encode("a", add_special_tokens=False)
            self.own_texts = texts_in_place(
                partial(self.decode, skip_special_tokens=False),
                before,
                self.special_ids,
                self._backend.id_to_token,
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not self._tidies:
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)
        return str(self._owner.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


class PythonTokenizer(_Templated):
    """Any other that transformers can load, written in Python."""

    longest_token = None

    def __init__(self, backend: Any, template: ChatTemplate | None) -> None:
        super().__init__(template)
        self._backend = backend
        self.special_ids = frozenset(backend.all_special_ids)
        self.own_texts = texts_in_place(
            partial(self.decode, skip_special_tokens=False),
            self.encode("a", add_special_tokens=False),
            self.special_ids,
            backend.convert_ids_to_tokens,
        )
        self.end_ids = frozenset(id for id in [backend.eos_token_id] if id is not None)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens))

    def encode_pair(self, first: str, second: str, most: int | None = None) -> Pair:
        if most is not None:
            room_between(most, self._backend.num_special_tokens_to_add(pair=True))
        cut = "longest_first" if most is not None else False
        whole = self._backend(
            first, second, truncation=cut, max_length=most, return_token_type_ids=True
        )
        return Pair.of_types(list(whole["input_ids"]), list(whole["token_type_ids"]))

    def count(self, text: str) -> int:
        return len(self.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        vocabulary: dict[str, int] = self._backend.get_vocab()
        return vocabulary.get(token)

    def to_json(self) -> str | None:
        return None


def _load_with_transformers(directory: Path, template: ChatTemplate | None) -> Tokenizer:
    loaded = transformers_tokenizer(directory)
    kind = ConvertedTokenizer if loaded.is_fast else PythonTokenizer
    return kind(loaded, template)


def _tidies(owner: Any) -> bool:
    """Whether a tokenizer of transformers changes texts after its Rust part has decoded them."""
    from transformers import PreTrainedTokenizerFast

    if type(owner)._decode is not PreTrainedTokenizerFast._decode:
        return True
    spares = getattr(owner, _FOR_BPE_TOO, True) is False
    is_spared = spares and type(owner.backend_tokenizer.model).__name__ == "BPE"
    return bool(owner.clean_up_tokenization_spaces) and not is_spared


def transformers_tokenizer(directory: Path) -> Any:
    """The tokenizer that transformers makes of a directory. ModelError: none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever an unknown tokenizer's code raises
        why = _what_is_lacking(directory) or reason(error)
        raise ModelError(f"{directory} holds no tokenizer that can be read: {why}") from error


def _what_is_lacking(directory: Path) -> str | None:
    """The packages that are missing to read SentencePiece's files, if there are no others."""
    files = sorted(path.name for path in directory.glob("*.model"))
    if not files or all(map(_is_installed, _SENTENCEPIECE.values())):
        return None
    return (
        f"of {files[0]} alone it is made with the packages {' and '.join(_SENTENCEPIECE)}; install "
        f"them (pip install {' '.join(_SENTENCEPIECE)}), or save it with a tokenizer.json"
    )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor is what it is part of
        return False
