"""<tool_call><function=f><parameter=a>1</parameter></function></tool_call>: Qwen 3 Coder, 3.5.

Seed-OSS has marks of its own, and no line's end on either side of a value.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.text.dialect.calls import Calls
from quire.text.dialect.grammar import LINE, Frame
from quire.text.dialect.one_by_one import Spelling
from quire.text.dialect.reader import Reading, TextReader

FUNCTION, FUNCTION_ENDS, PARAMETER = "<function=", "</function>", "<parameter="


@dataclass(frozen=True)
class Manner:
    """How one family writes it. opens, closes: around a call; some models leave them out."""

    opens: str
    closes: str
    margin: bool

    @property
    def marks(self) -> tuple[str, str]:
        return self.opens, self.closes

    @property
    def frame(self) -> Frame:
        return Frame(
            before=(self.opens, f"\n{FUNCTION}NAME>\n"),
            after=(f"{FUNCTION_ENDS}\n", self.closes, LINE),
            arguments=self._arguments.arguments,
        )

    @property
    def _arguments(self) -> Spelling:
        ends = ("</parameter>", FUNCTION_ENDS, self.closes)
        return Spelling(PARAMETER, ">", *ends, margin=self.margin, python=True)

    def read(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        """A call."""
        yield from reader.take(self.opens)
        yield from reader.spaces()
        if not (yield from reader.take(FUNCTION)):
            return False
        name = yield from reader.word()
        if not calls.accepts(name) or not (yield from reader.take(">")):
            return False
        if not (yield from self._arguments.read_call(reader, calls, name)):
            return False
        yield from reader.spaces()
        if (yield from reader.take(self.closes)):
            reader.use()
        else:
            reader.retreat()
        return True


QWEN = Manner("<tool_call>", "</tool_call>", margin=True)
SEED = Manner("<seed:tool_call>", "</seed:tool_call>", margin=False)
