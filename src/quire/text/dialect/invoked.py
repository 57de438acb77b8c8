"""Families that write a call's name in a mark and its arguments one after the other.

Qwen 3 Coder and 3.5: <tool_call><function=f><parameter=a>1</parameter></function></tool_call>;
Seed-OSS has marks of its own, and no line's end on either side of a value.
GLM 4.5 and later: <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>, and
Hunyuan the same between marks around all calls.
MiniMax M2 and DeepSeek V3.2: <invoke name="f"><parameter name="a">1</parameter></invoke>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.text.dialect.grammar import LINE, NUMBER, Frame
from quire.text.dialect.marked import read_section
from quire.text.dialect.one_by_one import Spelling
from quire.text.dialect.reader import CallForm, Calls, Reading, TextReader

_LINE = '"\\n"?'
_JSON_TYPES = ("integer", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True)
class Manner:
    """How one family writes calls.

    call: what opens one; the name and ``named`` follow.
    opens, closes: around each call, or around all of them together if ``shared``; some models leave
        them out.
    line: what stands after each of these.
    """

    call: str
    arguments: Spelling
    named: tuple[str, ...] = ()
    opens: str = ""
    closes: str = ""
    shared: bool = False
    line: str = "\n"

    @property
    def form(self) -> CallForm:
        return CallForm(tuple(filter(None, (self.opens, self.call))), self.read)

    @property
    def marks(self) -> tuple[str, ...]:
        ends = self.arguments.call_ends
        return tuple(filter(None, (self.opens, self.closes) if self.opens else (self.call, ends)))

    @property
    def frame(self) -> Frame:
        arguments, ends = self.arguments.arguments, self.arguments.call_ends
        one = (self.call, "NAME", *self.named, self.line)
        if self.shared:
            opening, closing = (self.opens, self.line), (self.closes,)
            return Frame(_all(one), _all((LINE, ends, self.line)), (), _all(opening), closing,
                         arguments=arguments)  # fmt: skip
        if self.opens:
            after = _all((ends, self.line, self.closes, LINE))
            return Frame(_all((self.opens, self.line, *one)), after, arguments=arguments)
        return Frame(_all(one), (LINE, ends, LINE), arguments=arguments)

    def read(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        """A call, or all of those that share marks."""
        ends = self.opens, self._read_call, self.closes
        return (yield from read_section(reader, calls, *ends, one=not self.shared))

    def _read_call(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        if not (yield from reader.take(self.call)):
            return False
        yield from reader.spaces()
        name = yield from reader.word()
        if not calls.accepts(name):
            return False
        for part in self.named:
            if part == NUMBER:
                yield from reader.word()
            elif not (yield from reader.take(part)):
                return False
        return (yield from self.arguments.read_call(reader, calls, name))


def _all(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for part in parts if part)


def _function(opens: str, closes: str, *, margin: bool) -> Manner:
    ends = ("</parameter>", "</function>", closes)
    spelled = Spelling("<parameter=", ">", *ends, margin=margin, python=True)
    return Manner("<function=", spelled, (">",), opens, closes)


QWEN = _function("<tool_call>", "</tool_call>", margin=True)
SEED = _function("<seed:tool_call>", "</seed:tool_call>", margin=False)

GLM = Manner(
    "<tool_call>",
    Spelling(
        *("<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>"),
        value="<arg_value>",
        line=_LINE,
        lines=True,
    ),
    line=LINE,
)
_HY = ":opensource>"
HUNYUAN = Manner(
    f"<tool_call{_HY}",
    Spelling(
        *(f"<arg_key{_HY}", f"</arg_key{_HY}", f"</arg_value{_HY}", f"</tool_call{_HY}"),
        outer=f"</tool_calls{_HY}",
        value=f"<arg_value{_HY}",
        lines=True,
    ),
    (f"<tool_sep{_HY}",),
    f"<tool_calls{_HY}",
    f"</tool_calls{_HY}",
    shared=True,
)


def _invoke(opens: str, closes: str, prefix: str = "", *, tagged: bool = False) -> Manner:
    """Marks are <invoke> and <parameter>, with a prefix, and perhaps whether a value is a text."""
    ends = (f"</{prefix}parameter>", f"</{prefix}invoke>", closes)
    tags = {"string": 'true">', **dict.fromkeys(_JSON_TYPES, 'false">')} if tagged else {}
    named = '" string="' if tagged else '">'
    spelled = Spelling(f'<{prefix}parameter name="', named, *ends, tags=tags)
    return Manner(f'<{prefix}invoke name="', spelled, ('">',), opens, closes, shared=True)


MINIMAX = _invoke("<minimax:tool_call>", "</minimax:tool_call>")
MUSE = _invoke("<atem:function_calls>", "</atem:function_calls>", "atem:")
_DSML = "｜DSML｜"
DEEPSEEK_32 = _invoke(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML, tagged=True)
DEEPSEEK_4 = _invoke(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _DSML, tagged=True)

MINICPM = Manner(
    '<function name="',
    Spelling(
        *('<param name="', '">', "</param>", "</function>"),
        line="",
        python=True,
        quotes=("<![CDATA[", "]]>"),
    ),
    ('">',),
    line="",
)

_SEP = "<|sep|>"
_KIMI_TYPES = {"integer": "number"}
KIMI_3 = Manner(
    '<|open|>call tool="',
    Spelling(
        '<|open|>argument key="',
        '" type="',
        f"<|close|>argument{_SEP}",
        f"<|close|>call{_SEP}",
        f"<|close|>tools{_SEP}",
        line="",
        tags={name: f'{_KIMI_TYPES.get(name, name)}"{_SEP}' for name in ("string", *_JSON_TYPES)},
    ),
    ('" index="', NUMBER, f'"{_SEP}'),
    f"<|open|>tools{_SEP}",
    f"<|close|>tools{_SEP}",
    shared=True,
    line="",
)
KIMI_3_MARKS = ("<|open|>", "<|close|>", _SEP)
