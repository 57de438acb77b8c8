"""A model in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from quire.text.dialect import (
    ContentPiece,
    Event,
    EventParser,
    OutputParser,
    ReasoningPiece,
    dialect_of,
    marks_of,
)
from quire.tools.terminal.conversation import Message
from quire.tools.terminal.models import Answer, Ending, Piece

if TYPE_CHECKING:
    from quire.engine.llm import LLM


class LocalModel:
    """A ``ChatModel``: an ``LLM`` that nothing else uses."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._tokenizer = llm.engine.input_processor.tokenizer
        template = self._tokenizer.chat_template
        render = self._tokenizer.apply_chat_template
        self._dialect, self._marks = dialect_of(template, render), marks_of(template, render)
        self.name = llm.capacity.model_name
        self.max_model_len = llm.capacity.max_model_len

    def room(self, messages: Sequence[Message]) -> int | None:
        if self.max_model_len is None:
            return None
        return self.max_model_len - self._tokenizer.count(self._prompt(messages))

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        chosen = self._llm.default_sampling_params(**params, kept_special_tokens=self._kept())
        marks = None if self._marks is None else (self._marks.start, self._marks.end)
        prompt = self._llm.engine.input_processor.begin_chat(messages, marks=marks)
        parser = self._parser(*prompt.begun)
        with closing(self._llm.stream(prompt.token_ids, chosen)) as deltas:
            for delta in deltas:
                yield _piece(parser.push(delta.text))
                if delta.final is not None:
                    metrics = delta.final.metrics
                    tokens = metrics.num_prompt_tokens, metrics.num_output_tokens
                    ending = Ending(delta.finish_reason, *tokens)
                    yield _piece(parser.finish())._replace(ending=ending)

    def _prompt(self, messages: Sequence[Message]) -> str:
        return self._tokenizer.apply_chat_template(messages, {})

    def _parser(self, opening: str, said: str) -> EventParser:
        """Tells reasoning from the answer, which the prompt may have begun."""
        if self._dialect is not None and self._dialect.parser is not None:
            return self._dialect.parser(None, opening + said)
        if self._marks is None:
            return OutputParser()
        return OutputParser(marks=self._marks, state=self._marks.state_after(opening, said))

    def _kept(self) -> tuple[int, ...]:
        """Special tokens whose text the parser must see."""
        marks: tuple[str, ...] = self._marks.tokens if self._marks else ()
        if self._dialect is not None and self._dialect.parser is not None:
            marks = self._dialect.marks
        found = [self._tokenizer.encode(mark, add_special_tokens=False) for mark in marks]
        return tuple(
            ids[0] for ids in found if len(ids) == 1 and ids[0] in self._tokenizer.special_ids
        )


def _piece(events: Sequence[Event]) -> Piece:
    said = "".join(event.text for event in events if isinstance(event, ContentPiece))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningPiece))
    return Piece(said, thought)
