"""What a turn's tools ask of the text, beside what its caller does: grammars and reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.core import exact_json
from quire.core.errors import RequestError
from quire.core.protocol import Reasoning, SamplingParams, StructuredOutputs
from quire.core.protocol.structured_outputs import LONGEST_GRAMMAR
from quire.http.chats.speech import Speech
from quire.http.chats.tools import Tool, ToolChoice
from quire.text.dialect import ParserState, Thought, Wanted

_ANYTHING: Mapping[str, Any] = {"type": "object"}


def guided(
    speech: Speech,
    params: SamplingParams,
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    several: bool,
    standing: ParserState,
) -> SamplingParams:
    """A turn's parameters, with what calls and reasoning need.

    tools: none where calls are not looked for.
    several: more than one may be called at once.
    standing: after what the prompt holds of the answer.
    """
    if params.thinking_token_budget is not None and speech.marks is None:
        raise RequestError(
            "thinking_token_budget: this model does not reason, as far as its chat template tells "
            "(--reasoning-parser)",
            "thinking_token_budget",
        )
    if tools or speech.marks is not None or speech.declared is not None:
        params = replace(params, kept_special_tokens=tuple(speech.special.values()))
    marks = speech.marks if standing.may_reason else None
    if marks is None:
        params = replace(params, thinking_token_budget=None)  # nothing comes that it could bound
    within = marks is not None and speech.reasons_within(opened=standing.reasons)
    grammar = _grammar(speech, params, tools, choice, several, within) if tools else None
    if grammar is not None:
        params = replace(params, structured_outputs=StructuredOutputs(grammar=grammar))
        if within:
            return replace(params, thinking_token_budget=None)
    if params.guided and marks is not None:
        order = ""
        if params.structured_outputs is not None and standing.reasons:
            order = speech.order(params.thinking_token_budget, amid=standing.amid)
        marked = Reasoning(marks.start, marks.end, standing.reasons, order)
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
    must, asked = choice.mode == "required", params.structured_outputs
    if speech.writing is None:
        if must or choice.names is not None or any(tool.strict for tool in tools):
            raise RequestError(
                f"calls of this model can be read but not asked for{speech.why_no_calls}: "
                "tool_choice may be auto or none, and no tool strict (--tool-call-parser)",
                "tool_choice" if must or choice.names is not None else "tools",
            )
        return None
    if must and asked is not None:
        raise RequestError(
            "structured_outputs asks for a text, and tool_choice for calls and no text: give one",
            "structured_outputs",
        )
    counting = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    bound = choice.names is not None or any(tool.strict for tool in counting)
    instead = None if must or speech.writing.bare else _schema(asked)
    if not must and (instead is None if asked is not None else not bound):
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


def _schema(asked: StructuredOutputs | None) -> Mapping[str, Any] | None:
    """The JSON schema that the caller asks for."""
    if asked is None or (asked.json is None and not asked.json_object):
        return None
    schema = _ANYTHING if asked.json is None else exact_json.read(str(asked.json))
    return schema if isinstance(schema, dict) else {}
