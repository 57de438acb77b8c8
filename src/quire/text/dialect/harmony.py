"""<|channel|>analysis<|message|>...<|end|><|start|>assistant...: the messages of gpt-oss.

OpenAI's harmony format: an output is messages, each with a header that names its channel and, of a
call, the recipient. Messages on the channel "analysis" are reasoning, all others content.
"""

from __future__ import annotations

import re

from quire.text.dialect.grammar import TEXT, GrammarRules, Spell, Wanted
from quire.text.dialect.json_calls import read_arguments
from quire.text.dialect.reader import Calls, Marks, Reading, TextParser, TextReader, Tools

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, CALL = "<|constrain|>", "<|end|>", "<|call|>"
ENDS = (END, CALL, "<|return|>")
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_BORDERS = (*ENDS, START, CHANNEL)  # of a message's body
REASONING = Marks(f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}", implied=True)

_LONGEST_HEADER = 512  # characters
_TO = "to="
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_ANALYSIS = re.compile(rf"{re.escape(CHANNEL)}\s*analysis\b")


class Channels:
    """How gpt-oss is made to write a call: one ends its output."""

    bare = False

    def grammar(self, wanted: Wanted) -> str:
        """See ``quire.text.dialect.grammar.Wanted``. What is said on other channels comes first."""
        rules, spell = GrammarRules(wanted.spell, wanted.any_token), wanted.spell
        channel, message = spell(CHANNEL), spell(MESSAGE)
        most = rules.bound(END, wanted.thought.most if wanted.thought else None)
        before = [] if most == 0 else [f'{channel} "analysis"']
        last = [self._call(rules, wanted)]
        if wanted.instead is not None:
            last.append(f"{_final(spell)} {rules.json(wanted.instead)}")
        elif wanted.text:
            before.append(f'{channel} "commentary"')
            last.append(f'{channel} "final" {message} {rules.terminal(TEXT)}')
        start = f"({' | '.join(last)})"
        if before:
            said = rules.up_to(END, most)
            head = rules.rule(" | ".join(before))
            times = "*" if most is None else "?"
            start = f'({head} {message} {said} {spell(START)} "assistant"){times} {start}'
        return "\n".join([f"start: {start}", *rules.lines])

    def order(self, spell: Spell, any_token: str, most: int | None, *, amid: bool) -> str:
        """A grammar for an output whose answer must be ``@text``, after any reasoning.

        most: tokens of reasoning; None: any number. amid: the prompt has begun it.
        """
        rules = GrammarRules(spell, any_token)
        most = rules.bound(END, most)
        thought = f'{rules.up_to(END, most)} {spell(START)} "assistant"'
        another = f'{spell(CHANNEL)} "analysis" {spell(MESSAGE)} {thought}'
        start = thought if amid else "" if most == 0 else f"({another})?"
        if most is None:
            start += f" ({another})*"
        return "\n".join([f"start: {start} {_final(spell)} @text", *rules.lines])

    def _call(self, rules: GrammarRules, wanted: Wanted) -> str:
        """The recipient stands after the channel, as the model mostly has it, or before."""
        spell = wanted.spell
        channel, constrain = spell(CHANNEL), spell(CONSTRAIN)
        calls = []
        for name, schema in wanted.tools.items():
            to = f"to=functions.{name}"
            header = rules.rule(
                f'{channel} "commentary {to}" " "? {constrain} "json" | '
                f'" {to}" {channel} "commentary " {constrain}? "json"'
            )
            calls.append(f"{header} {spell(MESSAGE)} {rules.json(schema)} {spell(CALL)}")
        return rules.rule(" | ".join(calls))


def _final(spell: Spell) -> str:
    """The header of an answer. It may say that JSON follows, whatever follows."""
    return f'{spell(CHANNEL)} "final" (" "? {spell(CONSTRAIN)} "json")? {spell(MESSAGE)}'


def parser(tools: Tools | None, begun: str = "") -> TextParser:
    """The parser of one output. tools: None: calls are not looked for.

    begun: the prompt's part of the output.
    """

    def read(reader: TextReader, calls: Calls) -> Reading[None]:
        last = ""
        header, amid = _open_message(begun)
        while True:
            if not amid:
                yield from reader.drop_spaces()
            if not reader.text and reader.ended:
                return
            header = header or (yield from _header(reader))
            if header is None:
                yield from _unmarked(reader)
                continue
            recipient = _RECIPIENT.search(header)
            name = recipient[1] if tools is not None and recipient is not None and not amid else ""
            if calls.accepts(name) and (yield from _read_call(reader, calls, name)):
                last, header = "", None
                continue
            kind = "reasoning" if _ANALYSIS.search(header) else "content"
            reader.gap = "\n" if kind == last else ""
            reader.use()
            if not amid:
                yield from reader.drop_spaces()
            say = reader.reason if kind == "reasoning" else reader.content
            _, mark = yield from reader.flow(say, _BORDERS)
            if mark in ENDS:
                reader.pass_mark(mark)
            last, header, amid = kind, None, False

    return TextParser(tools, read)


def _open_message(begun: str) -> tuple[str | None, bool]:
    """The header of the message that a prompt ends in, and whether some of its body is there."""
    head, mark, body = begun.rpartition(MESSAGE)
    if not mark or any(border in body for border in _BORDERS):
        return None, False
    return head[max(head.rfind(START), 0) :], bool(body.strip())


def _read_call(reader: TextReader, calls: Calls, name: str) -> Reading[bool]:
    """A message's body, if it is arguments; none at all are none."""
    start = reader.at
    yield from reader.spaces()
    for mark in ENDS:
        if (yield from reader.take(mark)):
            calls.tell(name, "{}")
            return True
    if not (yield from read_arguments(reader, calls, name)):
        reader.at = start
        return False
    yield from reader.spaces()
    for mark in ENDS:
        if (yield from reader.take(mark)):
            reader.use()
            return True
    reader.retreat()
    return True


def _header(reader: TextReader) -> Reading[str | None]:
    """The header of a message, up to its body; None if there is no message here.

    The prompt has begun the first one: the rest of its header may be only a recipient.
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
    return mark + header


def _unmarked(reader: TextReader) -> Reading[None]:
    """Read text outside messages as content, up to the next message."""
    for mark in (START, CHANNEL):
        if reader.text.startswith(mark):
            reader.content(mark)
            reader.pass_mark(mark)
    space, mark = yield from reader.flow(reader.content, (START, CHANNEL))
    reader.content(space)
