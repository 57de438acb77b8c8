"""How the served model writes calls and reasoning, as far as its chat template tells."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.http.config.server import ServerConfig
from quire.text.begun import Begun
from quire.text.dialect import (
    DIALECTS,
    REASONING,
    Declared,
    Dialect,
    EventParser,
    Marks,
    OutputParser,
    ParserState,
    Tools,
    Writing,
    dialect_of,
    literal,
    marks_of,
)
from quire.text.tokenizer import Tokenizer

_MOST_MARKS = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Speech:
    """Made once for a model.

    dialect: None where none is known.
    declared: what the model's files say in its place, if they do.
    marks: None where the model does not reason.
    writing: how it is made to call, where that is known.
    special: the marks that are special tokens, with their ids.
    reasoning_ids: of the marks of reasoning, where each is one token.
    """

    tokenizer: Tokenizer
    dialect: Dialect | None
    declared: Declared | None
    marks: Marks | None
    writing: Writing | None
    special: Mapping[str, int]
    reasoning_ids: tuple[int, int] | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: ServerConfig) -> Speech:
        template = tokenizer.chat_template
        named, reasoning = config.tool_call_parser, config.reasoning_parser
        dialect = DIALECTS[named] if named else dialect_of(template)
        declared = None if dialect else _declared(tokenizer)
        if reasoning:
            marks: Marks | None = REASONING[reasoning]
        else:
            marks = (declared.marks if declared else None) or marks_of(template)
        texts = [*(dialect.marks if dialect else ()), *((marks.start, marks.end) if marks else ())]
        found = {mark: tokenizer.encode(mark, add_special_tokens=False) for mark in texts}
        ids = {mark: tokens[0] for mark, tokens in found.items() if len(tokens) == 1}
        special = {mark: id for mark, id in ids.items() if id in tokenizer.special_ids}
        if declared is not None:
            special |= _mentioned(declared, tokenizer)
        reasoning_ids = None
        if marks is not None and marks.start in ids and marks.end in ids:
            reasoning_ids = ids[marks.start], ids[marks.end]
        writing: Writing | None = declared.writing if declared else None
        if dialect is not None:
            writing = dialect.writing_in(template)
        return cls(tokenizer, dialect, declared, marks, writing, special, reasoning_ids)

    @property
    def id_length(self) -> int | None:
        """Characters that its chat template wants a call's id to have; None: any number."""
        return self.dialect.id_length if self.dialect else None

    @property
    def reads_calls(self) -> bool:
        return self.dialect is not None or self.declared is not None

    @property
    def why_no_calls(self) -> str:
        """Why no calls can be required, if so."""
        return f": its response_template {self.declared.why_not}" if self.declared else ""

    def spelled(self, text: str) -> str:
        """How a grammar spells a text: with tokens where marks are some."""
        pieces = self._mark.split(text) if self.special else [text]
        return " ".join(
            f"<[{self.special[piece]}]>" if piece in self.special else literal(piece)
            for piece in pieces
            if piece
        )

    @property
    def any_token(self) -> str:
        """How a grammar spells one token, none of which is special."""
        return f"<[^{','.join(map(str, sorted(self.tokenizer.special_ids)))}]>"

    @cached_property
    def _mark(self) -> re.Pattern[str]:
        marks = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, marks))})")

    def parser(self, tools: Tools | None, begun: Begun) -> EventParser:
        """For one text. tools: None where calls are not looked for. begun: of it, by the prompt."""
        if self.declared is not None:
            return self.declared.parser(tools, begun.text)
        if self.dialect is not None and self.dialect.parser is not None:
            return self.dialect.parser(tools, begun.text)
        form = self.dialect.form if self.dialect and tools is not None else None
        return OutputParser(form, tools, self.marks, self.standing(begun))

    @property
    def begins(self) -> Sequence[str] | None:
        """The marks that count in what a prompt holds of an answer; None where nothing does."""
        if self.marks is not None:
            return self.marks.start, self.marks.end
        orders = self.dialect is not None and self.dialect.parser is not None
        return () if orders or self.declared is not None else None

    def standing(self, begun: Begun) -> ParserState:
        """Where an output begins, after what the prompt holds of the answer."""
        return ParserState() if self.marks is None else self.marks.standing(*begun)

    def reasons_within(self, *, opened: bool) -> bool:
        """Whether only a grammar for calls can have reasoning before them: its own.

        opened: the prompt has opened it.
        """
        if self.dialect is not None and self.dialect.parser is not None:
            return True  # the format orders the whole output
        return not opened and self.reasoning_ids is None

    def order(self, most: int | None, *, amid: bool) -> str:
        """What a structured answer stands in, as a grammar; "" where marks are all.

        most: tokens of a thought. amid: the prompt has begun one.
        """
        if self.dialect is None or self.dialect.order is None:
            return ""
        return self.dialect.order(self.spelled, self.any_token, most, amid=amid)

    def reasoning_tokens(self, token_ids: Sequence[int], standing: ParserState) -> int | None:
        """How many tokens of an output are reasoning; None where tokens do not say."""
        if self.reasoning_ids is None:
            return 0 if self.marks is None else None
        start, end = self.reasoning_ids
        first = 0
        if not standing.amid and self._opens(token_ids, start):
            first = token_ids.index(start) + 1
        elif not standing.reasons:
            return 0
        last = token_ids.index(end) if end in token_ids else len(token_ids)
        return last - first

    def _opens(self, token_ids: Sequence[int], start: int) -> bool:
        """Whether a token stands first in an output, but for white space."""
        if start not in token_ids:
            return False
        return not self.tokenizer.decode(token_ids[: token_ids.index(start)]).strip()


def _declared(tokenizer: Tokenizer) -> Declared | None:
    spec = tokenizer.response_template
    if spec is None:
        return None
    try:
        return Declared(spec)
    except ImportError:
        logger.warning("the model's response_template needs a newer transformers; it is not used")
    except Exception as error:  # whatever the fields of somebody's file bring about
        logger.warning("the model's response_template cannot be used: %s", error)
    return None


def _mentioned(declared: Declared, tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens that are marks of what the model's files declare."""
    texts = {tokenizer.decode([id], skip_special_tokens=False): id for id in tokenizer.special_ids}
    marks = sorted(text for text in texts if text and declared.mentions(text))
    return {text: texts[text] for text in marks[:_MOST_MARKS]}
