"""What a model's text means: reasoning, content, and calls of tools."""

from quire.text.dialect.catalogue import DIALECTS, REASONING, Dialect
from quire.text.dialect.declared import Declared
from quire.text.dialect.grammar import Thought, Wanted, Writing, literal
from quire.text.dialect.mending import mended
from quire.text.dialect.proof import GivenArguments, dialect_of, marks_of
from quire.text.dialect.reader import (
    Call,
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    CallForm,
    ContentPiece,
    Event,
    EventParser,
    Marks,
    OutputParser,
    ParserState,
    ReasoningPiece,
    Reply,
    Tools,
)

__all__ = [
    "DIALECTS",
    "REASONING",
    "Call",
    "CallArguments",
    "CallBegun",
    "CallCut",
    "CallEnded",
    "CallForm",
    "ContentPiece",
    "Declared",
    "Dialect",
    "Event",
    "EventParser",
    "GivenArguments",
    "Marks",
    "OutputParser",
    "ParserState",
    "ReasoningPiece",
    "Reply",
    "Thought",
    "Tools",
    "Wanted",
    "Writing",
    "dialect_of",
    "literal",
    "marks_of",
    "mended",
]
