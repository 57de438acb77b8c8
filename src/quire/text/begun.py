"""The part of an answer that is already in its prompt, found by what the chat template writes.

A template may open the reasoning, or continue a message whose reasoning has not ended. To find
that, the template is rendered again: without the beginning of an answer, or with a mark at the end
of the last message. The texts for that contain nothing that reads like a mark of reasoning, so that
nothing is inferred from what others have written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from quire.core.errors import RequestError
from quire.text.final_message import FIELD, last_text, lengthened, new_mark

_Message = Mapping[str, Any]
Render = Callable[[Sequence[_Message], Mapping[str, Any]], str]
"""A conversation as a text, by messages and the template's variables."""

_SAID_BY_OTHERS = ("tools", "documents")  # variables that are texts of the conversation
_OPENS = "add_generation_prompt"


class Begun(NamedTuple):
    """opening: what the template has written of the answer. said: the text that it continues."""

    opening: str = ""
    said: str = ""

    @property
    def text(self) -> str:
        return self.opening + self.said


class ChatPrompt(NamedTuple):
    """A conversation as a prompt, and the part of the answer that is in it."""

    token_ids: list[int]
    begun: Begun


def begun_in(
    prompt: str,
    render: Render,
    messages: Sequence[_Message],
    variables: Mapping[str, Any],
    marks: Sequence[str],
) -> Begun:
    """The part of the answer in ``prompt``, which was rendered from these messages.

    marks: what may open or close something in an answer.
    """
    going_on = bool(variables.get(FIELD))
    others, last = (messages[:-1], messages[-1:]) if going_on else (messages, ())
    given = {name: variables[name] for name in _SAID_BY_OTHERS if name in variables}
    calm, calm_given = _without(marks, list(others)), _without(marks, given)
    calm_variables = {**variables, **calm_given}
    if calm != list(others) or calm_given != given:
        prompt = render([*calm, *last], calm_variables)
    if last:
        text = _after_mark(prompt, render, calm, last, calm_variables)
        return _parted(text, last_text(last[0]) or "", marks)
    if calm_variables.get(_OPENS, True) and (added := _added(prompt, render, calm, calm_variables)):
        return Begun(added)
    return Begun(_after_mark(prompt, render, calm, (), calm_variables))


def _added(
    prompt: str, render: Render, messages: Sequence[_Message], variables: Mapping[str, Any]
) -> str:
    """What the template adds to begin an answer; "" if that cannot be found."""
    try:
        before = render(messages, {**variables, _OPENS: False})
    except RequestError:  # some take no such conversation
        return ""
    return prompt[len(before) :] if prompt.startswith(before) else ""


def _after_mark(
    prompt: str,
    render: Render,
    messages: Sequence[_Message],
    last: Sequence[_Message],
    variables: Mapping[str, Any],
) -> str:
    """The part of the prompt after the texts of ``messages``."""
    mark = new_mark()
    marked = [lengthened(one, mark) if last_text(one) else one for one in messages]
    try:
        text = render([*marked, *last], variables)
    except RequestError:  # it wants certain texts
        return prompt
    return text[text.rfind(mark) + len(mark) :] if mark in text else prompt


def _parted(text: str, said: str, marks: Sequence[str]) -> Begun:
    """A begun answer, divided into the template's part and the message's."""
    said = said if said.strip() else ""
    for kept in (said, said.rstrip(), said.strip()):
        if text.endswith(kept):
            break
    else:  # the template changes the text
        end = max((text.rfind(mark) + len(mark) for mark in marks if mark in text), default=0)
        kept = text[end:]
    opening = text.removesuffix(kept)
    return Begun(opening, text[len(opening) :])


def _without(marks: Sequence[str], value: Any) -> Any:
    """The value, with whatever reads like one of the marks taken out of its texts."""
    if not marks:
        return value
    reads = re.compile("|".join(map(re.escape, marks)))

    def calm(value: Any) -> Any:
        if isinstance(value, str):
            return reads.sub(lambda mark: "x" * len(mark[0]), value)
        if isinstance(value, dict):
            return type(value)({calm(key): calm(item) for key, item in value.items()})
        return [calm(item) for item in value] if isinstance(value, list) else value

    return calm(value)
