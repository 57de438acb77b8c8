"""What may be typed instead of a message, after a slash."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from quire.core.errors import QuireError
from quire.text.params import SamplingParams
from quire.tools.terminal.conversation import ChatHistory
from quire.tools.terminal.screen import Screen

Outcome = Literal["stay", "answer", "leave"]

HELP = {
    "/help": "this list",
    "/clear": "forget the conversation, but not the system prompt",
    "/system [TEXT]": "show the system prompt, or begin anew with another; - is none",
    "/save FILE": "write the conversation: .json as messages, any other name as Markdown",
    "/set [NAME [VALUE]]": "show the sampling parameters, or set one; without a value, as it was",
    "/regenerate": "another answer to the last message",
    "/exit": "leave (as Ctrl-D does)",
}
NAMES = tuple(usage.split()[0] for usage in HELP)

_PARAMETERS = [f.name for f in fields(SamplingParams) if f.metadata["flag"] and f.name != "n"]
_COMMAND = re.compile(r"/\w*(?=\s|$)")  # /etc/passwd is none


class Commands:
    """The commands of a chat, over its conversation and its sampling parameters."""

    def __init__(self, conversation: ChatHistory, params: dict[str, Any], screen: Screen) -> None:
        self._conversation = conversation
        self._params, self._params_at_start = params, dict(params)
        self._screen = screen
        self._actions: dict[str, Callable[[str], Outcome]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/system": self._system,
            "/save": self._save,
            "/set": self._set,
            "/regenerate": self._regenerate,
            "/exit": lambda argument: "leave",
        }

    def find(self, text: str) -> str | None:
        """The command that ``text`` gives, known or not; None: it is a message."""
        match = _COMMAND.match(text)
        return match and match[0]

    def run(self, command: str, text: str) -> Outcome:
        action = self._actions.get(command)
        if action is None:
            close = difflib.get_close_matches(command, NAMES, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]}? " if close else ""
            self._screen.error(
                f"unknown command {command}; {hint}/help lists them. A message that begins with a "
                "slash is sent with a space before it"
            )
            return "stay"
        try:
            return action(text[len(command) :].strip())
        except QuireError as error:
            self._screen.error(str(error))
            return "stay"

    def _help(self, argument: str) -> Outcome:
        width = max(map(len, HELP))
        for usage, text in HELP.items():
            self._screen.note(f"{usage:<{width}}  {text}")
        for keys, text in self._screen.keys.items():
            self._screen.note(f"{keys:<{width}}  {text}")
        return "stay"

    def _clear(self, argument: str) -> Outcome:
        self._conversation.turns.clear()
        self._screen.note("forgotten")
        return "stay"

    def _system(self, argument: str) -> Outcome:
        if argument:
            self._conversation.system = "" if argument == "-" else argument
            self._conversation.turns.clear()
            self._screen.note("the conversation begins anew")
        else:
            self._screen.note(self._conversation.system or "there is no system prompt")
        return "stay"

    def _save(self, argument: str) -> Outcome:
        if not argument:
            self._screen.error("/save needs the name of a file")
        elif not self._conversation.turns:
            self._screen.error("there is nothing to save yet")
        else:
            path = Path(argument).expanduser()
            self._conversation.save(path)
            self._screen.note(f"written: {path}")
        return "stay"

    def _set(self, argument: str) -> Outcome:
        name, _, value = argument.replace("=", " ", 1).partition(" ")
        name = name.replace("-", "_")
        if not name:
            for one in _PARAMETERS:
                if self._params.get(one) is not None:
                    self._screen.note(f"{one} = {json.dumps(self._params[one])}")
            self._screen.note(f"what can be set: {', '.join(_PARAMETERS)}")
        elif name not in _PARAMETERS:
            close = difflib.get_close_matches(name, _PARAMETERS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(_PARAMETERS)}"
            self._screen.error(f"there is no parameter {name}; {hint}")
        elif not value.strip():
            self._params[name] = self._params_at_start.get(name)
            self._screen.note(f"{name} is as it was at the start")
        else:
            chosen = {**self._params, name: _value(value.strip())}
            SamplingParams(**{key: one for key, one in chosen.items() if one is not None})
            self._params.update(chosen)
            self._screen.note(f"{name} = {json.dumps(chosen[name])}")
        return "stay"

    def _regenerate(self, argument: str) -> Outcome:
        if not self._conversation.turns:
            self._screen.error("there is nothing to answer yet")
            return "stay"
        return "answer"


def _value(text: str) -> Any:
    """JSON if it is that, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
