"""Lines of system prompts that change with every request, and would cost the prefix cache the rest.

An agent that begins each prompt with a line about itself (a version, a checksum, the time) never
finds what it sent before. The operator names such lines by patterns, and says for each whether it
goes to the end of the prompt or out of it. Clients read of it in their answers' warnings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple

from quire.core.errors import ConfigError

Message = Mapping[str, Any]

_FLAG = "volatile_prompt_lines"
_ACTIONS = ("move", "cut")
_MOST_RULES, _LONGEST_PATTERN = 16, 256
_LONGEST_LINE = 4096  # characters: time is bounded by them, since a pattern holds no expression
_SYSTEM = ("system", "developer")


class VolatileLines(NamedTuple):
    """One rule. matches: a whole line."""

    matches: Callable[[str], object]
    action: str


@lru_cache(maxsize=8)
def rules_of(given: tuple[str, ...]) -> tuple[VolatileLines, ...]:
    """The rules, each as PATTERN:ACTION; ConfigError for one that is none.

    ``*`` in a pattern stands for any text, ``?`` for a character and ``[ab]`` for one of these: an
    expression could run for ever on what a client sends, and these cannot.
    """
    if len(given) > _MOST_RULES:
        raise ConfigError(f"{_FLAG}: may hold at most {_MOST_RULES} rules, got {len(given)}")
    return tuple(map(_rule, given))


def _rule(given: str) -> VolatileLines:
    pattern, colon, action = given.rpartition(":")
    if not colon or action not in _ACTIONS:
        raise ConfigError(f"{_FLAG}: a rule is PATTERN:move or PATTERN:cut, got {given!r}")
    if not pattern.strip("*") or len(pattern) > _LONGEST_PATTERN:
        raise ConfigError(
            f"{_FLAG}: a pattern has 1 to {_LONGEST_PATTERN} characters, and not only *; got "
            f"{pattern!r}"
        )
    return VolatileLines(re.compile(translate(pattern)).match, action)


def settled(
    messages: Sequence[Message], rules: Sequence[VolatileLines], warnings: list[str]
) -> Sequence[Message]:
    """The messages, with the volatile lines of system prompts moved to the end, or cut.

    Those that are moved follow the text of the last message that is not the assistant's: what is
    before it stays what it was. Without such a message nothing is done.
    """
    said = [i for i, message in enumerate(messages) if _role(message) != "assistant"]
    if not said:
        return messages
    put: list[Message] = []
    moved, cut = list[str](), 0
    for message in messages:
        content = message.get("content")
        if _role(message) not in _SYSTEM or not isinstance(content, str):
            put.append(message)
            continue
        kept, found = list[str](), list[tuple[str, str]]()
        for line in content.split("\n"):
            action = _action(line, rules)
            if action is None:
                kept.append(line)
            else:
                found.append((action, line))
        cut += sum(action == "cut" for action, _ in found)
        moved += (line for action, line in found if action == "move")
        put.append({**message, "content": "\n".join(kept)} if found else message)
    if moved:
        last = put[said[-1]]
        put[said[-1]] = {**last, "content": "\n".join([last.get("content") or "", *moved])}
    for count, done in ((len(moved), "moved to the end of the prompt"), (cut, "cut")):
        if count:
            lines = (
                "line of the system prompt was" if count == 1 else "lines of the system prompt were"
            )
            warning = f"{count} {lines} {done}, as --volatile-prompt-lines says"
            if warning not in warnings:
                warnings.append(warning)
    return put


def _role(message: Message) -> object:
    return message.get("role")


def _action(line: str, rules: Sequence[VolatileLines]) -> str | None:
    if len(line) > _LONGEST_LINE:
        return None
    line = line.rstrip("\r")
    return next((rule.action for rule in rules if rule.matches(line)), None)
