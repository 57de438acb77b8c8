"""How the served model calls tools and reasons, and what a turn needs for it.

``Speech`` is read once from the model's chat template. The tools that a caller offers are checked,
and become a grammar and marks of reasoning (``guided``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from quire.capabilities.grammar.plain_words import outlined, widened
from quire.core.errors import RequestError, shown
from quire.http.config.server import ServerConfig
from quire.http.widened import Widened
from quire.text import exact_json
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
    Thought,
    Tools,
    Wanted,
    Writing,
    dialect_of,
    literal,
    marks_of,
)
from quire.text.params import Reasoning, SamplingParams, StructuredOutputs
from quire.text.params.structured_outputs import LONGEST_GRAMMAR
from quire.text.tokenizer import Tokenizer

MOST_TOOLS = 512
LONGEST_NAME = 64
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True)
class Tool:
    """A function of the caller's.

    parameters: the JSON schema of its arguments; None: any.
    strict: its arguments must follow the schema.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def for_template(self) -> Mapping[str, Any]:
        """As chat templates expect it: OpenAI's form."""
        more = {"description": self.description, "parameters": self.parameters}
        given = {key: value for key, value in more.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **given}}


@dataclass(frozen=True)
class ToolChoice:
    """What the model may do with tools.

    mode: "required" is one call at least.
    names: of the tools that count; None: all.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        """The choice of one tool, which must be called."""
        return cls("required", (name,))


AUTO = ToolChoice()


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """RequestError where the tools, or what is said of them, cannot be."""
    if len(tools) > MOST_TOOLS:
        raise RequestError(f"tools may hold at most {MOST_TOOLS} tools, got {len(tools)}", "tools")
    names = set()
    for number, tool in enumerate(tools):
        field = f"tools[{number}].function.name"
        if not _NAME.fullmatch(tool.name):
            raise RequestError(
                f"{field} must be 1 to {LONGEST_NAME} letters, digits, _ and -, got "
                f"{shown(tool.name)}",
                field,
            )
        if tool.name in names:
            raise RequestError(f"{field}: there are two tools named {tool.name}", field)
        names.add(tool.name)
        _check_schema(f"tools[{number}].function.parameters", tool.parameters or {})
    if choice.mode == "required" and not tools:
        raise RequestError("tool_choice needs tools to choose from", "tool_choice")
    for name in choice.names or ():
        if name not in names:
            raise RequestError(
                f"tool_choice names {shown(name)}, which is not one of the tools", "tool_choice"
            )


def _check_schema(field: str, schema: object) -> None:
    """RequestError where a schema is not one of an object."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise RequestError(f"{field} must be the schema of an object", field)
    if not isinstance(schema.get("properties", {}), dict):
        raise RequestError(f"{field}.properties must be an object", f"{field}.properties")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise RequestError(f"{field}.required must be a list of texts", f"{field}.required")


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
        render = tokenizer.apply_chat_template
        dialect = DIALECTS[named] if named else dialect_of(template, render)
        declared = None if dialect and dialect.names else _declared(tokenizer)
        if declared is not None:
            dialect = None
        if reasoning:
            marks: Marks | None = REASONING[reasoning]
        else:
            marks = (declared.marks if declared else None) or marks_of(template, render)
        texts = [*(dialect.marks if dialect else ()), *(marks.tokens if marks else ())]
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
        """Why no calls can be required; empty where they can."""
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
        return OutputParser(form, tools, self.marks, self.state_after(begun))

    @property
    def begins(self) -> Sequence[str] | None:
        """The marks that count in what a prompt holds of an answer; None where nothing does."""
        if self.marks is not None:
            return self.marks.start, self.marks.end
        orders = self.dialect is not None and self.dialect.parser is not None
        return () if orders or self.declared is not None else None

    def state_after(self, begun: Begun) -> ParserState:
        """Where an output begins, after what the prompt holds of the answer."""
        return ParserState() if self.marks is None else self.marks.state_after(*begun)

    def reasons_within(self, *, opened: bool) -> bool:
        """Whether only a grammar for calls can have reasoning before them: its own.

        opened: the prompt has opened it.
        """
        if self.dialect is not None and self.dialect.order is not None:
            return True  # the format orders the whole output
        return not opened and self.reasoning_ids is None

    def order(self, most: int | None, *, amid: bool) -> str:
        """What a structured answer stands in, as a grammar; "" where marks are all.

        most: tokens of a thought. amid: the prompt has begun one.
        """
        if self.dialect is None or self.dialect.order is None:
            return ""
        return self.dialect.order(self.spelled, self.any_token, most, amid=amid)

    def reasoning_tokens(self, token_ids: Sequence[int], state: ParserState) -> int | None:
        """How many tokens of an output are reasoning; None where tokens do not say."""
        if self.reasoning_ids is None:
            return 0 if self.marks is None else None
        start, end = self.reasoning_ids
        first = 0
        if not state.amid and self._opens(token_ids, start):
            first = token_ids.index(start) + 1
        elif not state.reasons:
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


_ANYTHING: Mapping[str, Any] = {"type": "object"}


def can_be_called(
    speech: Speech, tools: Sequence[Tool], choice: ToolChoice, unkept: Collection[str] = ()
) -> tuple[Sequence[Tool], list[Widened]]:
    """Tools with schemas that a call can keep to, and those that leave something out.

    Only of those that must be called, and are not strict. unkept: tools of which no more is kept to
    than an outline.
    """
    if choice.mode != "required" or speech.writing is None:
        return tools, []
    found, wider = [], []
    for tool in tools:
        if tool.parameters and not tool.strict:
            schema, left_out = _widened(speech.writing, speech, tool, outline=tool.name in unkept)
            if left_out:
                wider.append(Widened(tool.parameters, left_out, tool.name))
            tool = replace(tool, parameters=schema)
        found.append(tool)
    return found, wider


def _widened(
    writing: Writing, speech: Speech, tool: Tool, *, outline: bool
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """A wider schema of a tool's, and what that does not keep to."""

    def can_be_written(schema: Mapping[str, Any]) -> bool:
        try:
            alone = {tool.name: {**_ANYTHING, **schema}}
            writing.grammar(Wanted(alone, speech.spelled, several=False))
        except RequestError:
            return False
        return True

    if not outline:
        with suppress(RequestError):
            schema, left_out = widened(tool.parameters)
            if can_be_written(schema):
                return schema, left_out
    schema = outlined(tool.parameters or {})
    properties: Mapping[str, Any] = schema["properties"]
    if not can_be_written(schema):  # some forms have no words for some names
        properties = {
            name: one
            for name, one in properties.items()
            if can_be_written({"properties": {name: one}})
        }
    required = [name for name in schema["required"] if name in properties]
    schema = {**schema, "properties": properties, "required": required}
    return schema, ["all but properties and their types"]


def guided(
    speech: Speech,
    params: SamplingParams,
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    several: bool,
    state: ParserState,
) -> SamplingParams:
    """A turn's parameters, with what calls and reasoning need.

    tools: none where calls are not looked for.
    several: more than one may be called at once.
    state: after what the prompt holds of the answer.
    """
    if params.thinking_token_budget is not None and speech.marks is None:
        raise RequestError(
            "thinking_token_budget: this model does not reason, as far as its chat template tells "
            "(--reasoning-parser)",
            "thinking_token_budget",
        )
    if tools or speech.marks is not None or speech.declared is not None:
        params = replace(params, kept_special_tokens=tuple(speech.special.values()))
    marks = speech.marks if state.may_reason else None
    if marks is None:
        params = replace(params, thinking_token_budget=None)  # nothing comes that it could bound
    within = marks is not None and speech.reasons_within(opened=state.reasons)
    grammar = _grammar(speech, params, tools, choice, several, within) if tools else None
    if grammar is not None:
        params = replace(params, structured_outputs=StructuredOutputs(grammar=grammar))
        if within:
            return replace(params, thinking_token_budget=None)
    if params.guided and marks is not None:
        order = ""
        if params.structured_outputs is not None and state.reasons:
            order = speech.order(params.thinking_token_budget, amid=state.amid)
        marked = Reasoning(marks.start, marks.end, state.reasons, order)
        budget = None if order else params.thinking_token_budget  # the order has it
        params = replace(params, reasoning=marked, thinking_token_budget=budget)
    return params


def _grammar(
    speech: Speech,
    params: SamplingParams,
    tools: Sequence[Tool],
    choice: ToolChoice,
    several: bool,
    within: bool,
) -> str | None:
    """None where the model may write what it likes, or what the caller asks for.

    A tool that must be called has arguments by its schema; so has one that is strict, whenever it
    is called. What else the caller wants of the text holds for an answer without calls.

    within: the grammar is of the reasoning too.
    """
    must, structure = choice.mode == "required", params.structured_outputs
    if speech.writing is None:
        if must or choice.names is not None or any(tool.strict for tool in tools):
            raise RequestError(
                f"calls of this model can be read but not asked for{speech.why_no_calls}: "
                "tool_choice may be auto or none, and no tool strict (--tool-call-parser)",
                "tool_choice" if must or choice.names is not None else "tools",
            )
        return None
    if must and structure is not None:
        raise RequestError(
            "structured_outputs asks for a text, and tool_choice for calls and no text: give one",
            "structured_outputs",
        )
    counting = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if must and not counting:
        raise RequestError("tool_choice must name one tool at least, got none", "tool_choice")
    bound = choice.names is not None or any(tool.strict for tool in counting)
    instead = None if must or speech.writing.bare else _schema(structure)
    if not must and (instead is None if structure is not None else not bound):
        return None
    thought = None
    if within and speech.marks is not None:
        thought = Thought(speech.marks.start, speech.marks.end, params.thinking_token_budget)
    wanted = Wanted(
        {
            tool.name: {**_ANYTHING, **(((must or tool.strict) and tool.parameters) or {})}
            for tool in counting
        },
        speech.spelled,
        any_token=speech.any_token,
        several=several and not (must and len(counting) == 1),
        text=not must,
        instead=instead,
        thought=thought,
    )
    grammar = speech.writing.grammar(wanted)
    if len(grammar) > LONGEST_GRAMMAR:
        raise RequestError(
            f"the schemas of tools may have at most {LONGEST_GRAMMAR:,} characters together where "
            "calls must keep to them",
            "tools",
        )
    return grammar


def _schema(structure: StructuredOutputs | None) -> Mapping[str, Any] | None:
    """The JSON schema that the caller asks for."""
    if structure is None or (structure.json is None and not structure.json_object):
        return None
    schema = _ANYTHING if structure.json is None else exact_json.read(str(structure.json))
    return schema if isinstance(schema, dict) else {}
