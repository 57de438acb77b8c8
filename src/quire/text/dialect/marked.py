"""Calls whose names and arguments have marks of their own: DeepSeek's and Kimi's."""

from __future__ import annotations

from dataclasses import dataclass

from quire.text.dialect.grammar import NUMBER, Frame
from quire.text.dialect.json_calls import read_arguments
from quire.text.dialect.reader import CallForm, Calls, ReadCall, Reading, TextReader

FENCE, _FENCE_ENDS = "```json", "```"


def read_section(
    reader: TextReader, calls: Calls, opens: str, read: ReadCall, closes: str, *, one: bool = False
) -> Reading[bool]:
    """Calls between two marks, or only ``one``; False if the first is none.

    The text after a good one is left. Some models leave the marks out.
    """
    yield from reader.take(opens)
    called = False
    while not (called and one):
        yield from reader.spaces()
        if not (yield from read(reader, calls)):
            break
        called = True
        if calls.incomplete:
            return True
    if called and closes:
        reader.retreat()
        yield from reader.spaces()
        yield from reader.pass_end(closes)
    return called


@dataclass(frozen=True)
class Section:
    """Calls between ``opens`` and ``closes``: ``call``, a name, ``arguments``, JSON, ``ends``.

    misspelled: these two as some models write them.
    """

    opens: str
    call: str
    arguments: str
    ends: str
    closes: str
    prefix: str = ""  # of a name, which its number follows: Kimi has functions.f:0
    misspelled: tuple[str, str] | None = None

    @property
    def form(self) -> CallForm:
        opens = (self.opens, self.call)
        return CallForm(opens + (self.misspelled or ())[:1], self.read)

    @property
    def marks(self) -> tuple[str, ...]:
        return self.opens, self.call, self.arguments, self.ends, self.closes

    def read(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        """All calls of a section; False if the first is none. What follows a good one is left."""
        opens, closes = self.opens, self.closes
        if self.misspelled is not None and (yield from reader.take(self.misspelled[0])):
            opens, closes = "", self.misspelled[1]
        return (yield from read_section(reader, calls, opens, self._read_call, closes))

    def _read_call(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        if not (yield from reader.take(self.call)):
            return False
        name = (yield from reader.word()).removeprefix(self.prefix)
        id = None
        if self.prefix and (yield from reader.take(":")):
            number = yield from reader.word()
            id = f"{self.prefix}{name}:{number}"
        yield from reader.spaces()
        if not (yield from reader.take(self.arguments)):
            return False
        fenced = (yield from reader.peek()) not in ("{", " ", "\n", "")
        if fenced:  # DeepSeek V3 and R1: what it is first, then its name, then JSON in a fence
            name = yield from reader.word()
            yield from reader.spaces()
            yield from reader.take(FENCE)
        yield from reader.spaces()
        if not calls.accepts(name) or not (yield from read_arguments(reader, calls, name, id)):
            return False
        if calls.incomplete:
            return True
        yield from reader.spaces()
        if fenced and (yield from reader.take(_FENCE_ENDS)):
            yield from reader.spaces()
        yield from reader.pass_end(self.ends)
        return True


DEEPSEEK = Section(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
DEEPSEEK_FRAME = Frame(
    opening=(DEEPSEEK.opens,),
    before=(DEEPSEEK.call, "NAME", DEEPSEEK.arguments),
    after=(DEEPSEEK.ends,),
    closing=(DEEPSEEK.closes,),
)
FENCED_FRAME = Frame(
    opening=(DEEPSEEK.opens,),
    before=(DEEPSEEK.call, "function", DEEPSEEK.arguments, f"NAME\n{FENCE}\n"),
    after=(f"\n{_FENCE_ENDS}", DEEPSEEK.ends),
    between=("\n",),
    closing=(DEEPSEEK.closes,),
)

KIMI = Section(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    prefix="functions.",
    misspelled=("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
)
KIMI_FRAME = Frame(
    opening=(KIMI.opens,),
    before=(KIMI.call, "functions.NAME:", NUMBER, KIMI.arguments),
    after=(KIMI.ends,),
    closing=(KIMI.closes,),
)
