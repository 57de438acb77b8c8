"""Structural tags in xgrammar's newer form, a tree of formats, as a grammar of llguidance's.

A format whose text has no end of its own (``any_text``, tags in free text) ends where the tag does
that it stands in, or with the whole text; so it stands last. What ends it is read with it, for the
first one that comes is it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.capabilities.grammar.lark import literal
from quire.core.errors import RequestError, shown
from quire.text.exact_json import write

Json = Mapping[str, Any]
Ends = Sequence[Any]
"""What may end a format: texts or tokens. Empty: the whole text's end does."""

_FIELD = "structured_outputs"
_ANYTHING = "/(?s:.*)/"
_MOST_TIMES = 4_096  # of what is repeated
_MOST_CHARACTERS = 8_192  # of a text with a bound


class TagGrammar:
    """schema: what llguidance reads for a JSON schema, given white space's pattern.
    grammar: the same for a grammar in any of its forms.
    """

    def __init__(self, schema: Callable[[Any, int | None], Json], grammar: Callable[[str], str]):
        self._schema, self._grammar = schema, grammar
        self._lines: list[str] = []
        self._others: list[Json] = []

    def source(self, format_: Any) -> str:
        """The grammar's text; RequestError where a format is none that can be kept to."""
        start = self._format(format_, f"{_FIELD}.structural_tag.format", (), last=True)
        text = "\n".join(["%llguidance {}", f"start: {start}", *self._lines])
        if not self._others:
            return text
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": text}, *self._others]})

    def _format(self, given: Any, path: str, ends: Ends, *, last: bool) -> str:
        """A format and what ends it.

        last: nothing comes after that, as far as this format knows.
        """
        kind = given.get("type") if isinstance(given, dict) else None
        match kind:
            case "any_text":
                return self._any_text(given, path, ends, last)
            case "triggered_tags":
                return self._triggered(given, path, ends, last)
            case "dispatch":
                return self._dispatched(given, path, ends, last)
            case "sequence":
                *before, final = self._list(given, path, "elements", {"elements"})
                parts = [self._format(one, at, (), last=False) for one, at in before]
                return " ".join([*parts, self._format(*final, ends, last=last)])
            case "or":
                each = self._list(given, path, "elements", {"elements"})
                return self._either(self._format(*one, ends, last=last) for one in each)
            case "optional":
                _only(given, path, {"content"})
                content = self._format(given.get("content"), f"{path}.content", ends, last=last)
                end = self._end(ends)
                return self._either([content, end]) if end else f"({content})?"
            case "regex":
                _only(given, path, {"pattern"})
                pattern = _text(given, path, "pattern").replace("\n", r"\n")
                pattern = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)
                return self._bounded(f"/{pattern}/", ends)
        return f"{self._fixed(kind, given, path)} {self._end(ends)}"

    def _fixed(self, kind: Any, given: Any, path: str) -> str:
        """A format that knows by itself where it ends."""
        match kind:
            case "const_string":
                _only(given, path, {"value"})
                return literal(_text(given, path, "value"))
            case "json_schema":
                return self._rule(f"%json {write(self._read_schema(given, path))}")
            case "grammar":
                _only(given, path, {"grammar"})
                self._others.append(
                    {
                        "name": f"other{len(self._others)}",
                        "lark_grammar": self._grammar(_text(given, path, "grammar")),
                    }
                )
                return f"@other{len(self._others) - 1}"
            case "token":
                _only(given, path, {"token"})
                return _token(given.get("token"), path)
            case "tag":
                return self._tag(given, path)
            case "tags_with_separator":
                return self._separated(given, path)
            case "plus" | "star" | "repeat":
                return self._repeated(given, path)
        known = "any_text, const_string, json_schema, regex, grammar, token, sequence, or, optional"
        raise RequestError(
            f"{path}.type must be one of {known}, plus, star, repeat, tag, triggered_tags, "
            f"tags_with_separator, dispatch; got {shown(kind)}",
            _FIELD,
        )

    # -- texts with no end of their own ----------------------------------------------------------

    def _any_text(self, given: Json, path: str, ends: Ends, last: bool) -> str:
        _only(given, path, {"excludes", "max_chars", "max_tokens"})
        if given.get("max_tokens") is not None:
            raise _wrong(path, "max_tokens is not supported by Quire: give max_chars")
        most = given.get("max_chars")
        if most is not None and not (type(most) is int and 0 <= most <= _MOST_CHARACTERS):
            raise _wrong(path, f"max_chars must be from 0 to {_MOST_CHARACTERS:,}")
        _must_be_last(path, last)
        text = _ANYTHING if most is None else f"/(?s:.{{0,{most}}})/"
        return self._up_to(self._free(given, path, text), ends)

    def _triggered(self, given: Json, path: str, ends: Ends, last: bool) -> str:
        _only(given, path, {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"})
        triggers = _texts(given, path, "triggers")
        tags = self._list(given, path, "tags", None)
        units: dict[str, list[str]] = {one: [] for one in triggers}
        whole = []
        for tag, at in tags:
            begin = _text(tag, at, "begin") if isinstance(tag, dict) else ""
            heads = [one for one in triggers if begin.startswith(one)]
            if len(heads) != 1:
                raise _wrong(at, "begin must start with one of the triggers, and with one only")
            whole.append(self._rule(self._tag(tag, at)))
            units[heads[0]].append(self._tag({**tag, "begin": begin[len(heads[0]) :]}, at))
        text = self._free(given, path, _ANYTHING)
        amid = self._either(
            f"{self._up_to(text, [head])} {self._either(each)}"
            for head, each in units.items()
            if each
        )
        once, least = bool(given.get("stop_after_first")), bool(given.get("at_least_one"))
        if once and least:
            return f"{self._either(whole)} {self._end(ends)}"
        _must_be_last(path, last)
        rest = self._up_to(text, ends)
        if once:
            return self._either([f"{amid} {self._end(ends)}", rest])
        return f"{self._either(whole) if least else ''} ({amid})* {rest}"

    def _dispatched(self, given: Json, path: str, ends: Ends, last: bool) -> str:
        _only(given, path, {"rules", "loop", "excludes"})
        _must_be_last(path, last)
        text, loop = self._free(given, path, _ANYTHING), given.get("loop", True)
        each = []
        for number, rule in enumerate(_list_of(given, path, "rules")):
            at = f"{path}.rules[{number}]"
            if not (isinstance(rule, list) and len(rule) == 2 and isinstance(rule[0], str)):
                raise _wrong(at, "must hold a text and a format")
            body = self._format(rule[1], at, () if loop else ends, last=not loop)
            each.append(f"{self._up_to(text, rule[:1])} {body}")
        rest = self._up_to(text, ends)
        amid = self._either(each)
        return f"({amid})* {rest}" if loop else self._either([amid, rest])

    def _free(self, given: Json, path: str, text: str) -> str:
        """A terminal for a text that holds none of what is excluded."""
        excluded = _texts(given, path, "excludes") if given.get("excludes") else []
        if not excluded:
            return self._terminal(text)
        holding = self._terminal(f"/(?s:.*)/ ({' | '.join(map(literal, excluded))}) /(?s:.*)/")
        return self._terminal(f"{text} & ~{holding}")

    def _up_to(self, text: str, ends: Ends) -> str:
        """A text and what ends it, the first that comes; ``text`` is a terminal."""
        words = [end for end in ends if isinstance(end, str)]
        each = []
        if words:
            each.append(self._rule(f"{text} ({' | '.join(map(literal, words))})", "[lazy]"))
        each += [f"{text} {self._end([end])}" for end in ends if not isinstance(end, str)]
        return self._either(each) if each else text

    def _bounded(self, text: str, ends: Ends) -> str:
        """The same for a text that an expression describes: it may go on past what could end it."""
        if ends and all(isinstance(end, str) for end in ends):
            return self._terminal(f"{text} ({' | '.join(map(literal, ends))})")
        return f"{self._terminal(text)} {self._end(ends)}"

    # -- others ----------------------------------------------------------------------------------

    def _tag(self, given: Any, path: str) -> str:
        if not isinstance(given, dict) or given.get("type", "tag") != "tag":
            raise _wrong(path, "must be a tag")
        _only(given, path, {"begin", "content", "end"})
        begin, end = given.get("begin"), given.get("end")
        if isinstance(begin, dict):
            begin = _token(begin.get("token"), f"{path}.begin")
        else:
            begin = literal(_text(given, path, "begin", empty=True))
        ends = end if isinstance(end, list) else [end]
        for one in ends:
            if not isinstance(one, str) and not (isinstance(one, dict) and len(ends) == 1):
                raise _wrong(path, "end must be a text, a list of texts or a token")
        ends = [one for one in ends if one != ""] if "" not in ends or len(ends) > 1 else []
        content = self._format(given.get("content"), f"{path}.content", ends, last=bool(ends))
        return f"{begin} {content}"

    def _separated(self, given: Json, path: str) -> str:
        _only(given, path, {"tags", "separator", "at_least_one", "stop_after_first"})
        tags = self._list(given, path, "tags", None)
        one = self._rule(self._either(self._tag(tag, at) for tag, at in tags))
        separator = literal(_text(given, path, "separator", empty=True))
        more = "" if given.get("stop_after_first") else f"({separator} {one})*"
        return f"{one} {more}" if given.get("at_least_one") else f"({one} {more})?"

    def _repeated(self, given: Json, path: str) -> str:
        kind = given["type"]
        _only(given, path, {"content", "min", "max"} if kind == "repeat" else {"content"})
        content = self._rule(self._format(given.get("content"), f"{path}.content", (), last=False))
        if kind != "repeat":
            return f"{content}{'+' if kind == 'plus' else '*'}"
        least, most = given.get("min"), given.get("max")
        if (
            type(least) is not int
            or type(most) is not int
            or not (0 <= least <= _MOST_TIMES and (most == -1 or least <= most <= _MOST_TIMES))
        ):
            raise _wrong(path, f"min and max must be from 0 to {_MOST_TIMES:,}; max -1 is no bound")
        return f"{content}{{{least},{'' if most == -1 else most}}}"

    def _read_schema(self, given: Json, path: str) -> Json:
        known = {"json_schema", "style", "any_order", "max_whitespace_cnt"}
        _only(given, path, known)
        for name, neutral in (("style", "json"), ("any_order", False)):
            if given.get(name, neutral) != neutral:
                raise _wrong(path, f"{name} must be {json.dumps(neutral)}: it is all Quire knows")
        schema, most = given.get("json_schema"), given.get("max_whitespace_cnt")
        if not isinstance(schema, (dict, bool)):
            raise _wrong(path, "json_schema must be a JSON schema")
        if most is not None and not (type(most) is int and 0 <= most <= _MOST_CHARACTERS):
            raise _wrong(path, f"max_whitespace_cnt must be from 0 to {_MOST_CHARACTERS:,}")
        return self._schema(schema, most)

    def _end(self, ends: Ends) -> str:
        return self._either(
            literal(end) if isinstance(end, str) else _token(end.get("token"), "end")
            for end in ends
        )

    def _list(
        self, given: Json, path: str, name: str, known: set[str] | None
    ) -> list[tuple[Any, str]]:
        """Formats, and how each is called."""
        if known is not None:
            _only(given, path, known)
        found = _list_of(given, path, name)
        return [(one, f"{path}.{name}[{number}]") for number, one in enumerate(found)]

    def _either(self, each: Any) -> str:
        choices = list(each)
        if len(choices) < 2:
            return "".join(choices)
        return self._rule(" | ".join(one.strip() or '""' for one in choices))

    def _rule(self, expression: str, how: str = "") -> str:
        return self._add("r", how, expression)

    def _terminal(self, expression: str) -> str:
        return self._add("T", "", expression)

    def _add(self, kind: str, how: str, expression: str) -> str:
        name = f"{kind}{len(self._lines)}"
        self._lines.append(f"{name}{how}: {expression}")
        return name


def _must_be_last(path: str, last: bool) -> None:
    if not last:
        raise _wrong(path, "has no end of its own: it must come last, or stand in a tag")


def _only(given: Json, path: str, known: set[str]) -> None:
    if others := sorted(given.keys() - known - {"type"}):
        raise RequestError(f"field {path}.{shown(others[0])} is not supported by Quire", _FIELD)


def _text(given: Json, path: str, name: str, *, empty: bool = False) -> str:
    text = given.get(name)
    if not isinstance(text, str) or not (text or empty):
        raise _wrong(path, f"{name} must be a text")
    return text


def _texts(given: Json, path: str, name: str) -> list[str]:
    texts = _list_of(given, path, name)
    if not all(isinstance(text, str) and text for text in texts):
        raise _wrong(path, f"{name} must be a list of texts that are not empty")
    return texts


def _list_of(given: Json, path: str, name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list) or not found:
        raise _wrong(path, f"{name} must be a list that is not empty")
    return found


def _token(token: Any, path: str) -> str:
    if type(token) is int and token >= 0:
        return f"<[{token}]>"
    if isinstance(token, str) and re.fullmatch(r"<[^<>\s\[\]]+>", token):
        return token
    raise _wrong(path, "token must be a token's id, or its text between < and >")


def _wrong(path: str, why: str) -> RequestError:
    return RequestError(f"{path}: {why}", _FIELD)
