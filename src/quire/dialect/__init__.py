"""What a model's text means: reasoning, content, and calls of tools."""

from quire.dialect.calls import Tools
from quire.dialect.catalogue import DIALECTS, REASONING, Dialect, dialect_of, marks_of
from quire.dialect.declared import Declared
from quire.dialect.events import (
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    ContentPiece,
    Event,
    ReasoningPiece,
    Reply,
)
from quire.dialect.grammar import Frame, calls_grammar, literal
from quire.dialect.parser import CallForm, Marks, OutputParser, Parser

__all__ = [
    "DIALECTS",
    "REASONING",
    "Call",
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "CallForm",
    "ContentPiece",
    "Declared",
    "Dialect",
    "Event",
    "Frame",
    "Marks",
    "OutputParser",
    "Parser",
    "ReasoningPiece",
    "Reply",
    "Tools",
    "calls_grammar",
    "dialect_of",
    "literal",
    "marks_of",
]
