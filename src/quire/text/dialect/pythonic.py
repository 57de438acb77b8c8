"""[f(a=1), g(b="x")], as Python would call them: Llama 4, LFM, and others with such a template."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace

from quire.core.errors import RequestError, shown
from quire.text.dialect.grammar import Frame, GrammarRules, Schema, literal, members
from quire.text.dialect.mending import NoLiteral, as_json, mended, parse_python, quoted, spelling_in
from quire.text.dialect.reader import Calls, Reading, TextReader
from quire.text.dialect.schemas import python_words

OPENS, CLOSES = "<|python_start|>", "<|python_end|>"
LFM_OPENS, LFM_CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"


def _arguments(rules: GrammarRules, schema: Schema) -> str:
    """Rules for arguments by name, required ones first. Values are JSON, which ``read`` accepts
    too.

    Python's own words are what models know.
    """
    needed: list[str] = []
    others: list[str] = []
    for key, one, required in members(schema):
        if not key.isidentifier():
            raise RequestError(f"this model's calls cannot have an argument {shown(key)}", "tools")
        value = " | ".join([rules.json(one), *map(literal, python_words(one))])
        spelled = rules.rule(f"{literal(key + '=')} ({value})")
        (needed if required else others).append(spelled)
    comma = literal(", ")
    rests = [""]  # after each of the others, from the last one on
    for other in reversed(others):
        rests.append(rules.rule(f"({comma} {other})? {rests[-1]}"))
    if needed:
        return f" {comma} ".join(needed) + " " + rests[-1]
    firsts = [f"{other} {rest}" for other, rest in zip(others, rests[-2::-1], strict=True)]
    return f"({' | '.join(firsts)})?" if firsts else ""


FRAME = Frame(
    opening=("[",),
    before=("NAME(",),
    after=(")",),
    between=(", ",),
    closing=("]",),
    bare=True,
    arguments=_arguments,
)
LFM_FRAME = replace(FRAME, opening=(LFM_OPENS, "["), closing=("]", LFM_CLOSES), bare=False)

_BETWEEN = re.compile(r"""[^\[\](){}"']*""")
_IN_TEXT = {quote: re.compile(rf"[^\\{quote}]*(?:\\[\s\S][^\\{quote}]*)*") for quote in "'\""}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_NAMES = re.compile(
    r"""(?P<text>(?P<quote>'{3}|"{3}|['"])(?:\\.|(?!(?P=quote)).)*(?P=quote))"""
    r"|\b(?P<first>[a-z])(?=\w*\s*=(?!=))",
    re.DOTALL,
)
_MOST_WASTED = 2**16  # characters of lists that were none of calls, until none is looked for
_WIDE = ord("ａ") - ord("a")


def read(
    reader: TextReader, calls: Calls, opens: str = OPENS, closes: str = CLOSES
) -> Reading[bool]:
    """All of the list at once: whether it is one of calls shows at its end."""
    if (yield from reader.take(opens)):
        calls.only_known = False
        yield from reader.spaces()
    start = reader.at
    if not (yield from reader.take("[")):
        return False
    yield from reader.spaces()
    name = yield from reader.word()
    if not calls.accepts(name) or not (yield from reader.take("(")):
        return False
    reader.at = start
    if calls.wasted > _MOST_WASTED:
        return False
    closed = yield from _pass_brackets(reader)
    found = _calls(reader.text[start : reader.at], calls) if closed else []
    if not found:
        calls.wasted += reader.at - start
    for called, arguments in found:
        calls.tell(called, arguments)
    if found and (yield from reader.take(closes)):
        reader.use()
    return bool(found)


def _pass_brackets(reader: TextReader) -> Reading[bool]:
    """Skip a bracket and all up to the one that closes it; False if they do not match."""
    opened: list[str] = []
    while True:
        char = yield from reader.pass_all(_BETWEEN)
        if char in _IN_TEXT:
            if not (yield from _pass_text(reader, char)):
                return False
            continue
        reader.at += 1
        if char in _CLOSING:
            opened.append(_CLOSING[char])
        elif not char or char != opened.pop():
            return False
        if not opened:
            return True


def _pass_text(reader: TextReader, quote: str) -> Reading[bool]:
    """Skip a Python string, in one or in three quotes; False if it does not end."""
    for end in (quote * 3, quote * 2, quote):
        if (yield from reader.take(end)):
            break
    if end == quote * 2:
        return True  # an empty one
    while True:
        char = yield from reader.pass_all(_IN_TEXT[quote])
        if char == quote and (yield from reader.take(end)):
            return True
        if not char or (char == "\\" and reader.ended):
            return False
        if char == quote:
            reader.at += 1
        else:  # what it escapes is to come
            yield


def _calls(text: str, calls: Calls) -> list[tuple[str, str]]:
    """Names and arguments; none if anything in the list is not a call with literals by name."""
    text = _NAMES.sub(_no_keyword, text)
    try:
        listed = parse_python(text)
        assert isinstance(listed, ast.List)
        spelled = spelling_in(text)
        found = [_call(item, spelled) for item in listed.elts]
    except (NoLiteral, RecursionError):
        return []
    return found if all(calls.accepts(name) for name, _ in found) else []


def _no_keyword(found: re.Match[str]) -> str:
    """``from=`` so that Python reads a name: to it a wide letter is the same (PEP 3131), but makes
    no keyword. What models call has parameters of any name."""
    return found["text"] or chr(ord(found["first"]) + _WIDE)


def _call(node: ast.expr, spelling: Callable[[ast.expr], str]) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise NoLiteral("no call by name")
    arguments = []
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NoLiteral("**")
        spelled = as_json(spelling(keyword.value), keyword.value)
        arguments.append(f"{quoted(keyword.arg)}: {spelled}")
    whole = mended("{" + ", ".join(arguments) + "}")
    if whole is None:
        raise NoLiteral("levels beyond what is read")
    return _name(node.func), whole


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(owner, name):
            return f"{_name(owner)}.{name}"
    raise NoLiteral("no name")
