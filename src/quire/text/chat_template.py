"""A model's chat template: from messages to the text of a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables

from quire.core.errors import ModelError, RequestError, reason
from quire.models.files import read_text
from quire.text.added_tokens import content_of
from quire.text.final_message import FIELD, FinalMessage
from quire.text.sandbox import MOST_SECONDS, Generation, Sandbox, TooMuch
from quire.text.template_costs import MOST_CHARACTERS

Message = Mapping[str, Any]

_MOST_INDENT = 16  # spaces, in JSON
_LONGEST_DATE = 200  # characters, of what a date is to look like


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
            raise ModelError(f"the chat template does not compile: {reason(error)}") from error
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
        declared = config.get("response_template")
        return cls(
            source,
            special_tokens(config),
            with_tools,
            declared if isinstance(declared, dict) else None,
        )

    def render(
        self, messages: Sequence[Message], variables: Mapping[str, Any], max_characters: float
    ) -> str:
        """The prompt for an answer to ``messages``; ``variables`` are the template's own."""
        if variables.get("documents") and "documents" not in self._understood:
            raise RequestError("the model's chat template takes no documents", "documents")
        if "developer" not in self.source:
            messages = [_as_system(message) for message in messages]
        final = FinalMessage(messages) if variables.get(FIELD) else None
        given = {
            "add_generation_prompt": True,
            **self._special_tokens,
            **variables,
            "messages": messages if final is None else final.marked,
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
            raise RequestError(
                f"the model's chat template refuses these messages: {reason(error)}", "messages"
            ) from error
        if length > max_characters:
            raise RequestError(
                f"messages must come to at most {max_characters} characters in the model's chat "
                "template, and come to more",
                "messages",
            )
        text = "".join(pieces)
        return text if final is None else final.cut(text)


def render(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    max_characters: float,
) -> str:
    """Of whatever template there is; RequestError for none, and for no messages."""
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


def _read_template(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {reason(error)}") from error


def _as_system(message: Message) -> Message:
    """Messages for templates without developers, who become systems."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer's config names, by their use."""
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
    return {name: content_of(config[name]) for name in names if config.get(name)}


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
    if len(form) > _LONGEST_DATE:  # the system makes up to 256 times as much of it
        raise TemplateError(f"strftime_now takes {_LONGEST_DATE} characters at most")
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
