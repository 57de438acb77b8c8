"""<|channel|>analysis<|message|>...<|end|><|start|>assistant...: the messages of gpt-oss.

OpenAI's harmony format: an output is messages, each with a header that names its channel and, of a
call, the recipient. What is said on the channel "analysis" is reasoning, anything else content.
"""

from __future__ import annotations

import re

from quire.dialect.calls import Calls, Tools
from quire.dialect.parser import Marks, TextParser
from quire.dialect.reader import Reader, Reading

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (START, CHANNEL, "<|constrain|>", MESSAGE, *ENDS)
REASONING = Marks(f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}", implied=True)

_LONGEST_HEADER = 512  # characters
_TO = "to="
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_ANALYSIS = re.compile(rf"{re.escape(CHANNEL)}\s*analysis\b")


def parser(tools: Tools | None) -> TextParser:
    """For one output. tools: None where calls are not looked for."""

    def read(reader: Reader, calls: Calls) -> Reading[None]:
        last = ""
        while True:
            yield from reader.drop_spaces()
            if not reader.text and reader.ended:
                return
            header = yield from _header(reader)
            if header is None:
                yield from _unmarked(reader)
                continue
            recipient = _RECIPIENT.search(header)
            if tools is not None and recipient is not None and calls.accepts(recipient[1]):
                kind = "call"
                calls.begin(recipient[1])
                say = calls.give
            else:
                kind = "reasoning" if _ANALYSIS.search(header) else "content"
                say = reader.reason if kind == "reasoning" else reader.content
                reader.gap = "\n" if kind == last else ""
            yield from reader.drop_spaces()
            _, mark = yield from reader.flow(say, (*ENDS, START, CHANNEL))
            if kind == "call":
                calls.end()
            if mark in ENDS:
                reader.pass_mark(mark)
            last = kind

    return TextParser(tools, read)


def _header(reader: Reader) -> Reading[str | None]:
    """What stands before a message's body, which is passed; None if there is no message here.

    The prompt has begun the first one: what is left of its header may be no more than a recipient.
    """
    for mark in (START, CHANNEL, _TO):
        if (yield from reader.take(mark)):
            break
    else:
        return None
    header = yield from reader.until(MESSAGE, _LONGEST_HEADER)
    if header is None:
        reader.retreat()
        return None
    reader.use()
    return mark + header


def _unmarked(reader: Reader) -> Reading[None]:
    """What is no message is content, up to where one begins."""
    for mark in (START, CHANNEL):
        if reader.text.startswith(mark):
            reader.content(mark)
            reader.pass_mark(mark)
    space, mark = yield from reader.flow(reader.content, (START, CHANNEL))
    reader.content(space)
