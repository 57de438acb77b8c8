"""``quire chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError
from quire.text.params.sampling_params import SamplingParams
from quire.tools.commands.command import Command
from quire.tools.commands.flags import (
    add_engine_flags,
    add_flag,
    add_sampling_flags,
    check_no_engine_flags,
    help_of,
    options,
    sampling_options,
)
from quire.tools.commands.parser import Parser

if TYPE_CHECKING:
    from quire.tools.terminal.models import ChatModel
    from quire.tools.terminal.screen import Screen

_KEY_VARIABLE = "QUIRE_API_KEY"


def add_chat(parser: Parser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of("model"))
    parser.add_argument("--system", metavar="TEXT", help="system message before the conversation")
    text = "show answers as Markdown, if the terminal can"
    add_flag(parser, "markdown", "bool", True, text)
    group = parser.add_argument_group(
        "server", "With --url, a running server answers instead of an engine in this process."
    )
    text = "server with OpenAI's API, such as http://host:8000"
    add_flag(group, "url", "str", None, text, value="URL")
    add_flag(
        group, "api_key", "str", None, "API key of the server (default: the variable "
        f"{_KEY_VARIABLE}, which other users of this machine cannot see)", value="KEY",
    )  # fmt: skip
    add_sampling_flags(parser, max_tokens=None, leave_out=("n",))
    add_engine_flags(parser)


def chat(arguments: argparse.Namespace) -> int:
    """Talk until the person leaves; the exit status."""
    given = sampling_options(arguments)
    SamplingParams(**given)  # before a model is loaded

    from quire.tools.terminal.chat import Chat

    logging.getLogger().setLevel(logging.WARNING)  # the rest would come between the lines
    screen = _screen(arguments.markdown)
    model = _model(arguments, screen)
    longest = f" of {model.max_model_len:,} tokens" if model.max_model_len else ""
    screen.note(f"{model.name}, conversations{longest}. /help lists commands, Ctrl-D leaves.")
    Chat(model, screen, given, arguments.system or "").run()
    return 0


def _screen(markdown: bool) -> Screen:
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from quire.tools.terminal.rich_screen import RichScreen

        return RichScreen(markdown)
    from quire.tools.terminal.screen import PlainScreen

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is typed may be no text
    return PlainScreen()


def _model(arguments: argparse.Namespace, screen: Screen) -> ChatModel:
    if arguments.url is not None:
        from quire.tools.terminal.remote import RemoteModel

        check_no_engine_flags(arguments)
        keys: Any = os.environ.get(_KEY_VARIABLE, "").split(",")  # a server's may be several
        return RemoteModel(arguments.url, arguments.model, arguments.api_key or keys[0] or None)
    if arguments.api_key is not None:
        raise ConfigError("api_key does nothing without a url")
    screen.note(f"loading {arguments.model or 'the demonstration model'} …")

    from quire.engine.llm import LLM
    from quire.tools.terminal.local import LocalModel

    return LocalModel(LLM(**options(arguments)))


COMMAND = Command(add_chat, chat)
