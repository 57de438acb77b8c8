"""A model's chat template: from messages to the text of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError, RequestError, reason
from quire.models.files import read_text
from quire.text.added_tokens import content_of
from quire.text.final_message import FIELD, FinalMessage
from quire.text.sandbox import OWN, Renderer, Templates

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template: Jinja in a sandbox, as in transformers' ``apply_chat_template``.

    with_tools: another one, for when there are tools.
    declared: how the answers to it are to be read.
    renderer: where it is rendered; by default in this process, which is for templates that somebody
        has read.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        with_tools: str | None = None,
        declared: Mapping[str, Any] | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        here = Templates()
        self._plain, self._with_tools = source, source if with_tools is None else with_tools
        for one in {self._plain, self._with_tools}:
            here.check(one)
        self._renderer = here if renderer is None else renderer
        self._special_tokens = dict(special_tokens)
        self.source = with_tools or source
        self.declared = declared

    @classmethod
    def load(
        cls,
        directory: Path,
        config: Mapping[str, Any],
        override: str | None,
        renderer: Renderer | None,
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
            renderer,
        )

    def render(
        self, messages: Sequence[Message], variables: Mapping[str, Any], max_characters: float
    ) -> str:
        """The prompt for an answer to ``messages``; ``variables`` are the template's own, and may
        hold another template in its place.
        """
        own = variables.get(OWN)
        source = self._with_tools if variables.get("tools") else self._plain
        field = "messages" if own is None else OWN
        if "developer" not in (self.source if own is None else own):
            messages = [_as_system(message) for message in messages]
        final = FinalMessage(messages) if variables.get(FIELD) else None
        given = {
            "add_generation_prompt": True,
            **self._special_tokens,
            **variables,
            "messages": messages if final is None else final.marked,
        }
        text = self._renderer.render(source if own is None else own, given, max_characters, field)
        if len(text) > max_characters:
            raise RequestError(
                f"messages must come to at most {max_characters} characters in the model's chat "
                "template, and come to more",
                "messages",
            )
        return text if final is None else final.cut(text)


def render(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    max_characters: float,
) -> str:
    """Render with the model's template. RequestError: it has none, or there are no messages."""
    if template is None:
        raise RequestError(
            "the model has no chat template: use plain completions, or give --chat-template",
            "messages",
        )
    if not messages:
        raise RequestError("messages must hold at least one message", "messages")
    return template.render(messages, variables, max_characters)


def _read_template(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {reason(error)}") from error


def _as_system(message: Message) -> Message:
    """The message with the role system for developer, which some templates do not know."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer's config names, by their use."""
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
    return {name: content_of(config[name]) for name in names if config.get(name)}
