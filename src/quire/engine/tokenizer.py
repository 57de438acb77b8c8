"""Text to tokens and back, through ``tokenizers`` and the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.errors import ModelError, RequestError
from quire.files import check_plain, one_line, read_object, read_text

Message = Mapping[str, Any]

_MOST_BYTES = 256 << 20  # of a tokenizer.json; the largest have some tens of millions


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def apply_chat_template(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The messages as one prompt text; RequestError if the template refuses them."""
        ...


def load_tokenizer(directory: Path, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer in ``directory``; its chat template may be replaced by another's text.

    ``tokenizer.json`` is read directly; a directory without one goes through transformers.
    """
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
    backend.no_padding()
    backend.no_truncation()
    return JsonTokenizer(backend, template)


class ChatTemplate:
    """A model's chat template: Jinja in a sandbox, as in transformers' ``apply_chat_template``."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(f"the chat template does not compile: {one_line(error)}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(
        cls, directory: Path, config: Mapping[str, Any], override: str | None
    ) -> ChatTemplate | None:
        source: Any = override
        file = directory / "chat_template.jinja"
        if source is None and file.exists():
            source = _read_template(file)
        if source is None:
            source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = (entry for entry in source if isinstance(entry, dict))
            source = {entry.get("name"): entry.get("template") for entry in named}.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelError(f"{directory}: chat_template must be a text, or texts by name")
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
        return cls(source, {name: _content(config[name]) for name in names if config.get(name)})

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The prompt for an answer to ``messages``; ``variables`` are the template's own."""
        given = {"messages": messages, "add_generation_prompt": True}
        try:
            return self._template.render({**self._special_tokens, **variables, **given})
        except (TemplateError, SecurityError, TypeError, KeyError, ValueError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", "messages"
            ) from error


class JsonTokenizer:
    """A ``tokenizer.json``."""

    def __init__(self, backend: tokenizers.Tokenizer, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        return _render(self._template, messages, variables)


class TransformersTokenizer:
    """Any tokenizer that only transformers can load."""

    def __init__(self, backend: Any, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        return _render(self._template, messages, variables)


def _render(
    template: ChatTemplate | None, messages: Sequence[Message], variables: Mapping[str, Any]
) -> str:
    if template is None:
        raise RequestError(
            "the model has no chat template: use plain completions, or give --chat-template",
            "messages",
        )
    if not messages:
        raise RequestError("messages must hold at least one message", "messages")
    return template.render(messages, variables)


def _load_with_transformers(directory: Path, template: ChatTemplate | None) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever an unknown tokenizer's code raises
        reason = one_line(error)
        raise ModelError(f"{directory} holds no tokenizer that can be read: {reason}") from error
    return TransformersTokenizer(tokenizer, template)


def _read_template(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {one_line(error)}") from error


def _content(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
