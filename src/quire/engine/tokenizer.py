"""Text to tokens and back, through ``tokenizers`` and the model's own chat template."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables

from quire.engine.final_message import cut_at_mark, marked
from quire.engine.gguf_tokenizer import read_tokenizer
from quire.engine.longest_token import longest_token
from quire.engine.sandbox import (
    MOST_CHARACTERS,
    MOST_SECONDS,
    Generation,
    Sandbox,
    TooMuch,
)
from quire.engine.token_texts import OwnTexts, bound_words
from quire.errors import ModelError, RequestError
from quire.files import check_plain, one_line, read_object, read_text
from quire.gguf import is_gguf, open_gguf

Message = Mapping[str, Any]

_MOST_INDENT = 16  # spaces, in JSON
_MOST_OF_A_REASON = 200  # characters, of a template's own complaint
_MOST_BYTES = 256 << 20  # of a tokenizer.json; the largest have some tens of millions


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer. Any thread may call it."""

    @property
    def longest_token(self) -> int | None:
        """Most characters of a text that one token can stand for; None: any number."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that ``skip_special_tokens`` leaves out."""
        ...

    @property
    def own_texts(self) -> Mapping[int, str]:
        """What a token adds to a text wherever it stands, by its id; "" where that depends."""
        ...

    @property
    def chat_template(self) -> str:
        """Its source, "" if there is none."""
        ...

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """What the model's files declare of its answers, in transformers' form."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def count(self, text: str) -> int:
        """Tokens of a text without special tokens around it."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_id(self, token: str) -> int | None:
        """Of a token by its name; None: there is no such token."""
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


def load_tokenizer(directory: Path, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer in ``directory``; its chat template may be replaced by another's text.

    It may be a GGUF file. ``tokenizer.json`` is read directly; a directory without one goes through
    transformers.
    """
    if is_gguf(directory):
        backend, config = read_tokenizer(open_gguf(directory))
        return JsonTokenizer(backend, ChatTemplate.load(directory, config, chat_template))
    settings = directory / "tokenizer_config.json"
    config = read_object(settings) if settings.exists() else {}
    template = ChatTemplate.load(directory, config, chat_template)
    path = directory / "tokenizer.json"
    if not path.exists():
        return _load_with_transformers(directory, template)
    check_plain(path, _MOST_BYTES)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} is not a tokenizer: {one_line(error)}") from error
    return JsonTokenizer(backend, template)


class ChatTemplate:
    """A model's chat template: Jinja in a sandbox, as in transformers' ``apply_chat_template``.

    with_tools: another one, for when there are tools.
    declared: how the answers to it are to be read.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        with_tools: str | None = None,
        declared: Mapping[str, Any] | None = None,
    ) -> None:
        self._environment = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            filters={"tojson": _to_json},
        )
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = self._environment.from_string(source)
            self._with_tools = self._template
            if with_tools is not None:
                self._with_tools = self._environment.from_string(with_tools)
            self._understood = find_undeclared_variables(self._environment.parse(source))
        except (TemplateError, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(f"the chat template does not compile: {one_line(error)}") from error
        self._special_tokens = dict(special_tokens)
        self.source = with_tools or source
        self.declared = declared

    def replaced(self, source: str) -> ChatTemplate:
        """Another template, a request's own, for the same model."""
        try:
            return ChatTemplate(source, self._special_tokens)
        except ModelError as error:
            raise RequestError(str(error), "chat_template") from error

    @classmethod
    def load(
        cls, directory: Path, config: Mapping[str, Any], override: str | None
    ) -> ChatTemplate | None:
        source: Any = override
        with_tools = None
        file = directory / "chat_template.jinja"
        if source is None and file.exists():
            source = _read_template(file)
        if source is None:
            source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = (entry for entry in source if isinstance(entry, dict))
            by_name = {entry.get("name"): entry.get("template") for entry in named}
            source, with_tools = by_name.get("default"), by_name.get("tool_use")
        if source is None:
            return None
        if not isinstance(source, str) or not isinstance(with_tools, (str, type(None))):
            raise ModelError(f"{directory}: chat_template must be a text, or texts by name")
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
        special = {name: _content(config[name]) for name in names if config.get(name)}
        declared = config.get("response_template")
        return cls(source, special, with_tools, declared if isinstance(declared, dict) else None)

    def render(
        self, messages: Sequence[Message], variables: Mapping[str, Any], max_characters: float
    ) -> str:
        """The prompt for an answer to ``messages``; ``variables`` are the template's own."""
        if variables.get("documents") and "documents" not in self._understood:
            raise RequestError("the model's chat template takes no documents", "documents")
        if "developer" not in self.source:
            messages = [_as_system(message) for message in messages]
        going_on = variables.get("continue_final_message", False)
        given = {
            "add_generation_prompt": True,
            **self._special_tokens,
            **variables,
            "messages": marked(messages) if going_on else messages,
        }
        template = self._with_tools if variables.get("tools") else self._template
        pieces, length = [], 0
        try:
            with self._environment.limits():
                for piece in template.generate(given):
                    pieces.append(piece)
                    length += len(piece)
                    if length > max_characters:
                        break  # it need not end
        except TooMuch:
            raise RequestError(
                f"the model's chat template takes more than {MOST_SECONDS:g} seconds or "
                f"{MOST_CHARACTERS:,} characters to put these messages together",
                "messages",
            ) from None
        except Exception as error:  # whatever its operations on these values raise
            why = str(error)[:_MOST_OF_A_REASON]
            raise RequestError(
                f"the model's chat template refuses these messages: {why}", "messages"
            ) from error
        if length > max_characters:
            raise RequestError(
                f"messages must come to at most {max_characters} characters in the model's chat "
                "template, and come to more",
                "messages",
            )
        text = "".join(pieces)
        return cut_at_mark(text) if going_on else text


class JsonTokenizer:
    """A ``tokenizer.json``."""

    def __init__(self, backend: tokenizers.Tokenizer, template: ChatTemplate | None) -> None:
        backend.no_padding()
        backend.no_truncation()
        bound_words(backend)
        self._backend = backend
        self._template = template
        self.longest_token = longest_token(backend)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.own_texts: Mapping[int, str] = OwnTexts(backend, self.special_ids)
        self.chat_template = "" if template is None else template.source
        self.response_template = None if template is None else template.declared

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # Unlike encode, encode_batch_fast lets other threads run.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def count(self, text: str) -> int:
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

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
        return _render(self._template, messages, variables, max_characters)


class ConvertedTokenizer(JsonTokenizer):
    """One that transformers has made of other files, and whose texts it tidies."""

    def __init__(self, owner: Any, template: ChatTemplate | None) -> None:
        super().__init__(owner.backend_tokenizer, template)
        self._backend.encode_special_tokens = owner.split_special_tokens
        self._owner = owner
        self.own_texts = defaultdict(str)  # what is tidied depends on what is around it

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._owner.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


class PythonTokenizer:
    """Any other that transformers can load, written in Python."""

    longest_token = None

    def __init__(self, backend: Any, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template
        self.own_texts = defaultdict[int, str](str)
        self.special_ids = frozenset(backend.all_special_ids)
        self.chat_template = "" if template is None else template.source
        self.response_template = None if template is None else template.declared

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens))

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
        return _render(self._template, messages, variables, max_characters)


def _render(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    max_characters: float,
) -> str:
    if template is None:
        raise RequestError(
            "the model has no chat template: use plain completions, or give --chat-template",
            "messages",
        )
    if not messages:
        raise RequestError("messages must hold at least one message", "messages")
    own = variables.get("chat_template")
    if own is not None:
        template = template.replaced(own)
    return template.render(messages, variables, max_characters)


def _load_with_transformers(directory: Path, template: ChatTemplate | None) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever an unknown tokenizer's code raises
        reason = one_line(error)
        raise ModelError(f"{directory} holds no tokenizer that can be read: {reason}") from error
    kind = ConvertedTokenizer if loaded.is_fast else PythonTokenizer
    return kind(loaded, template)


def _read_template(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {one_line(error)}") from error


def _as_system(message: Message) -> Message:
    """For templates that know no developers, who are systems by another name."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _content(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent if indent is None else min(indent, _MOST_INDENT),
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
