"""Text to tokens and back, through ``tokenizers`` and the model's own chat template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from quire.core.errors import ModelError, reason
from quire.models.files import check_plain
from quire.models.gguf import is_gguf, open_gguf
from quire.text.added_tokens import end_names, join_tokens, read_settings
from quire.text.chat_template import ChatTemplate, Message, render
from quire.text.gguf_tokenizer import read_tokenizer
from quire.text.longest_token import longest_token
from quire.text.pairs import Pair, longest_first, room_between
from quire.text.sandbox import Renderer
from quire.text.token_texts import TokenTexts, bound_words, own_texts, texts_in_place

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


class JsonTokenizer:
    """A ``tokenizer.json``."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None,
        ends: Iterable[str] = (),
    ) -> None:
        """ends: tokens that end a text; those that are none are left out."""
        backend.no_padding()
        backend.no_truncation()
        bound_words(backend)
        self._backend = backend
        self._template = template
        self.longest_token = longest_token(backend)
        self.special_ids = _left_out(backend)
        self.own_texts = own_texts(backend, self.special_ids)
        ids = map(backend.token_to_id, ends)
        self.end_ids = frozenset(id for id in ids if id is not None)
        self.chat_template = "" if template is None else template.source
        self.response_template = None if template is None else template.declared

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # Unlike encode, encode_batch_fast lets other threads run.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def encode_pair(self, first: str, second: str, most: int | None = None) -> Pair:
        a, b = self._backend.encode_batch_fast([first, second], add_special_tokens=False)
        if most is not None:
            room = room_between(most, self._backend.num_special_tokens_to_add(True))
            kept = longest_first(len(a), len(b), room)
            a.truncate(kept[0])
            b.truncate(kept[1])
        whole = self._backend.post_process(a, b)
        return Pair.of_types(whole.ids, whole.type_ids)

    def count(self, text: str) -> int:
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self.own_texts.strips is None:
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        dropped = self.special_ids if skip_special_tokens else ()
        return self.own_texts.join(id for id in token_ids if id not in dropped)

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def to_json(self) -> str | None:
        return self._backend.to_str()

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        max_characters: float = math.inf,
    ) -> str:
        return render(self._template, messages, variables, max_characters)


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


class PythonTokenizer:
    """Any other that transformers can load, written in Python."""

    longest_token = None

    def __init__(self, backend: Any, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template
        self.special_ids = frozenset(backend.all_special_ids)
        self.own_texts = texts_in_place(
            partial(self.decode, skip_special_tokens=False),
            self.encode("a", add_special_tokens=False),
            self.special_ids,
            backend.convert_ids_to_tokens,
        )
        self.end_ids = frozenset(id for id in [backend.eos_token_id] if id is not None)
        self.chat_template = "" if template is None else template.source
        self.response_template = None if template is None else template.declared

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

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        max_characters: float = math.inf,
    ) -> str:
        return render(self._template, messages, variables, max_characters)


def _load_with_transformers(directory: Path, template: ChatTemplate | None) -> Tokenizer:
    loaded = transformers_tokenizer(directory)
    kind = ConvertedTokenizer if loaded.is_fast else PythonTokenizer
    return kind(loaded, template)


def _tidies(owner: Any) -> bool:
    """Whether it does more to a text than its tokenizer in Rust."""
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
