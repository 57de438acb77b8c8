"""What a server does with what a client shapes."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from fuzz.case import Case
from fuzz.models import Model, model
from fuzz.walk import Broken, walk
from quire.capabilities.grammar import Rules
from quire.core.errors import RequestError
from quire.http.chats.speech import Tool, ToolChoice, can_be_called, check_tools, guided
from quire.text.begun import Begun
from quire.text.detokenizer import Detokenizer
from quire.text.dialect import EventParser, Reply
from quire.text.params import SamplingParams, StructuredOutputs

Tell = Callable[[str], None]

_TOKENS = 50
_LONGEST_REFUSAL = 4_000  # characters
_MOST_CHARACTERS = 100_000  # of a rendered template
_BOX = 256 << 20  # bytes that a server's box gives a template
_CHECKED = 2_000  # characters of a schema whose texts are validated
_ITS_OWN = ("pattern", "format", "$dynamicRef", "unevaluated", "x-guidance", "if", "contains")


def prepare(case: Case) -> None:
    """Make what all children share, before there is one."""
    _model(case)


def attempt(case: Case, seed: int, tell: Tell) -> str:
    """Do it all; what came of it. Broken, or whatever else is raised, is a finding.

    tell: called with each stage before it begins.
    """
    chance = random.Random(seed)
    try:
        match case.language:
            case "template":
                return _render(case.given, tell)
            case "tools":
                return _talk(case.given, _model(case), chance, tell)
        return _write(case.given, _model(case), chance, tell)
    except RequestError as error:
        why = str(error)
        if len(why) > _LONGEST_REFUSAL or why.strip(": ") == "structured_outputs":
            raise Broken(f"a refusal of {len(why):,} characters: {why[:200]!r}") from error
        return f"refused: {why}"


def _model(case: Case) -> Model:
    if case.language != "tools":
        return model()
    return model(case.given["dialect"], case.given.get("reasoning", ""))


def _write(given: Mapping[str, Any], of: Model, chance: random.Random, tell: Tell) -> str:
    tell("compile")
    params = SamplingParams(structured_outputs=StructuredOutputs.of(given))
    text, ended = _text(params, of, chance, tell)
    if ended and "json" in given and "whitespace_pattern" not in given:
        tell("validate")
        _validate(given["json"], text)
    return "served"


def _text(params: SamplingParams, of: Model, chance: random.Random, tell: Tell) -> tuple[str, bool]:
    """A text that is written by the rules, and whether it has ended."""
    rules = of.compiler.rules(params)
    tell("walk")
    if rules is None:
        return "", False

    def alone() -> Rules:
        made = of.alone().rules(params)
        assert made is not None
        return made

    output, ended = walk(of, rules, alone, chance, _TOKENS)
    said = Detokenizer(of.tokenizer, [], True, params.kept_special_tokens)
    return "".join([said.push(token) for token in output]) + said.flush(), ended


def _validate(schema: Any, text: str) -> None:
    """Broken where a text that has ended does not follow its schema."""
    value = json.loads(text)
    written = json.dumps(schema)
    if len(written) > _CHECKED or any(word in written for word in _ITS_OWN):
        return
    try:
        jsonschema.Draft202012Validator(schema).validate(value)
    except jsonschema.ValidationError as error:
        raise Broken(
            f"{text[:200]!r} is written for a schema that says {error.message[:200]}"
        ) from None
    except Exception:  # it does not understand the schema, which is nothing of ours
        return


def _render(given: Mapping[str, Any], tell: Tell) -> str:
    tell("render")
    variables = {**given["variables"], "chat_template": given["template"]}
    _limit_memory(_BOX)
    try:
        model().tokenizer.apply_chat_template(given["messages"], variables, _MOST_CHARACTERS)
    except MemoryError:  # a server renders in a box, which says the same in words
        return "refused: it needs too much memory"
    return "served"


def _limit_memory(most: int) -> None:
    """Let this process take so many more bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most, hard))


def _talk(given: Mapping[str, Any], of: Model, chance: random.Random, tell: Tell) -> str:
    """A turn with tools: the text is read as it is written, whole and in pieces."""
    tools = [Tool(**{"name": "", **one}) for one in given["tools"]]
    named = given["tool_choice"]
    choice = ToolChoice(named) if named in ("auto", "none", "required") else ToolChoice.named(named)
    check_tools(tools, choice)
    begun = Begun(given["begun"])
    schemas = {tool.name: tool.parameters or {} for tool in tools}
    parsers = [of.speech.parser(schemas, begun) for _ in range(2)]
    tell("parse")
    _read(parsers, given["said"])
    params = SamplingParams()
    if of.speech.marks is not None and "thinking" in given:
        params = replace(params, thinking_token_budget=given["thinking"])
    if "schema" in given and choice.mode != "required":
        params = replace(params, structured_outputs=StructuredOutputs.of({"json": given["schema"]}))
    tell("compile")
    state = of.speech.state_after(begun)
    tools, _ = can_be_called(of.speech, tools, choice)
    params = guided(of.speech, params, tools, choice, several=given["several"], state=state)
    text, ended = _text(params, of, chance, tell)
    tell("parse")
    reply = _read([of.speech.parser(schemas, begun) for _ in range(2)], list(text))
    if ended and params.structured_outputs is not None:
        for call in reply.calls:
            json.loads(call.arguments)
    return "served"


def _read(parsers: Sequence[EventParser], pieces: Sequence[str]) -> Reply:
    """What a text says, however it is cut. Broken where that is not so."""
    whole, cut = parsers
    text = "".join(pieces)
    at_once = Reply.of(whole.push(text) + whole.finish())
    events = [event for piece in pieces for event in cut.push(piece)]
    by_piece = Reply.of(events + cut.finish())
    if at_once != by_piece:
        raise Broken(f"{text[:200]!r} says {at_once} at once and {by_piece} in pieces")
    return at_once
