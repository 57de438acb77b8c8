"""What all chat doors share: from a turn of a conversation to a prompt, and from text to events.

A door reads its own request into a ``ConversationTurn``, has ``begin`` make a ``PreparedChat`` of
it, and words what that says.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from quire.core.errors import RequestError, shown
from quire.core.protocol import Origin
from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.engine.thread import LONG
from quire.http.body_fields import in_callers_words
from quire.http.chats.kept_prompts import Mark, found_in
from quire.http.chats.speech import AUTO, Tool, ToolChoice, can_be_called, check_tools, guided
from quire.http.config.volatile import rules_of, settled
from quire.http.errors import BrokenCallError
from quire.http.service import Progress, Service
from quire.http.widened import Widened, checked
from quire.text.begun import Begun
from quire.text.chat_template import Message
from quire.text.dialect import (
    CallBegun,
    CallCut,
    ContentPiece,
    Event,
    EventParser,
    GivenArguments,
    ReasoningPiece,
    Reply,
    mended,
)
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams

_TEMPLATE_OWN = {
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    "chat_template",
}
_ALPHANUMERIC = string.ascii_letters + string.digits
_ID_LENGTH = 24
_FEW = 128  # messages, calls and tools, of which to be put takes a quarter of a millisecond
_LONGEST_SEARCH = 5.0  # seconds, for the tools of which no grammar can be made


@dataclass(frozen=True)
class ConversationTurn:
    """A turn of a conversation, in no door's words.

    messages: in OpenAI's form. A text, or no content; calls' arguments as JSON or as objects.
    parallel_calls: several calls may be made at once.
    reasoning_effort: for the chat template; "none" is no reasoning.
    include_reasoning: give it to the caller.
    variables: the chat template's own.
    rendering: more of the rendering, which no caller may give as a variable.
    form: how its text becomes a prompt.
    options: the prompt's priority, client, cache salt and adapter (see ``Prompt``).
    field_names: how the door calls what is refused under another name.
    marks: to where its prompt would best be kept.
    widened: the schema of the answer, if that is held to a wider one.
    warnings: for the caller; more is added to them, until the turn has ended.
    """

    messages: Sequence[Message]
    params: SamplingParams
    tools: Sequence[Tool] = ()
    choice: ToolChoice = AUTO
    parallel_calls: bool = True
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    rendering: Mapping[str, Any] = field(default_factory=dict)
    form: PromptForm = field(default_factory=PromptForm)
    options: Mapping[str, Any] = field(default_factory=dict)
    field_names: Mapping[str, str] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    widened: Sequence[Widened] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def large(self) -> bool:
        """Whether to put it in a chat template's words takes more than a moment."""
        calls = sum(len(message.get("tool_calls") or ()) for message in self.messages)
        return len(self.messages) + calls + len(self.tools) > _FEW


class TurnUsage(NamedTuple):
    """The tokens of a request. None: kept from clients, or not known."""

    prompt: int
    completion: int
    cached: int | None
    reasoning: int | None


class Listener:
    """What one choice says, as its text comes."""

    def __init__(self, parser: EventParser, turn: ConversationTurn) -> None:
        self._parser = parser
        self.is_plain = parser.is_plain  # all that is said is content
        self._reasoning = turn.include_reasoning
        self._only_calls = turn.choice.mode == "required"  # else it is a mark that was cut
        self._most_calls = None if turn.parallel_calls else 1
        self._called = self._cut = False

    def hear(self, gained: Delta | CompletionOutput) -> list[Event]:
        """The events in what has been gained: a delta, or all of an output.

        BrokenCallError where a call has begun that is none. One that a limit or a stop string has
        cut is given as far as it goes.
        """
        events = self._parser.push(gained.text) if gained.text else []
        over = gained.finish_reason == "stop" and gained.stop_reason is None
        if gained.finish_reason is not None:
            events += self._parser.finish(cut=not over)
        heard = [event for event in events if self._is_told(event)]
        for event in heard:
            self._called = self._called or isinstance(event, CallBegun)
            if isinstance(event, CallCut):
                if event.broken or over:
                    raise BrokenCallError(
                        "the model has begun a call of a tool whose arguments are not JSON: "
                        + shown(event.text)
                    )
                self._cut = True
        if self._only_calls:  # what was written of a call would be a mark in a text
            heard = [one._replace(text="") if isinstance(one, CallCut) else one for one in heard]
        return heard

    def finish_reason(self, reason: str | None) -> str | None:
        """The engine's, or that the text has ended to call; not in the middle of a call."""
        return "tool_calls" if reason == "stop" and self._called and not self._cut else reason

    def _is_told(self, event: Event) -> bool:
        match event:
            case ReasoningPiece():
                return self._reasoning
            case ContentPiece():
                return not self._only_calls
        return self._most_calls is None or event.number < self._most_calls


class PreparedChat:
    """A turn that is ready to run, and what comes of it.

    params: the turn's, with what calls and reasoning need.
    widened: schemas of the answer and of calls that are not kept to in all that they say.
    """

    def __init__(
        self,
        service: Service,
        turn: ConversationTurn,
        prompt: Mapping[str, Any],
        begun: Begun,
        unkept: Collection[str] = (),
    ) -> None:
        """begun: what the prompt holds of the answer. unkept: see ``can_be_called``."""
        self._service = service
        self._turn = turn
        self._prompt = prompt
        self._begun = begun
        self._state = service.speech.state_after(begun)
        self._tools = None
        tools: Sequence[Tool] = ()
        self.widened = [*turn.widened]
        if turn.tools and _listens(service, turn):
            self._tools = {tool.name: tool.parameters or {} for tool in turn.tools}
            with in_callers_words({"structured_outputs": "tools"}):
                tools, wider = can_be_called(service.speech, turn.tools, turn.choice, unkept)
            self.widened += wider
        self._listeners: dict[int, Listener] = {}
        self.params = guided(
            service.speech,
            turn.params,
            tools,
            turn.choice,
            several=turn.parallel_calls,
            state=self._state,
        )
        self._field_names = turn.field_names
        if self.params.structured_outputs is not turn.params.structured_outputs:
            self._field_names = {**turn.field_names, "structured_outputs": "tools"}

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        token_ids: Sequence[int] = self._prompt["prompt_token_ids"]
        return token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_kept(self) -> int:
        """Tokens of its prompt that are to be kept, to the last of its marks."""
        most = max((tokens for tokens, _ in self._prompt.get("keep", ())), default=0)
        return min(most, self.num_prompt_tokens)

    def run(self, request_id: str, *, whole: bool) -> Progress:
        service, names = self._service, self._field_names
        progress = service.run(request_id, [self._prompt], self.params, names, whole=whole)
        if not self.widened:
            return progress
        return checked(service.engine, progress, self.widened, self._said, self._turn.warnings)

    def listener(self, index: int) -> Listener:
        """The listener of a choice, for all its deltas."""
        if index not in self._listeners:
            self._listeners[index] = self._listen()
        return self._listeners[index]

    def reply(self, output: CompletionOutput) -> tuple[Reply, str | None]:
        """What a finished output says all together, and its finish reason."""
        listener = self._listen()
        reply = Reply.of(listener.hear(output))
        return reply, listener.finish_reason(output.finish_reason)

    def _said(self, output: CompletionOutput) -> Reply:
        """What a finished output says, as far as it can be read."""
        try:
            return self.reply(output)[0]
        except BrokenCallError:
            return Reply()

    def told(self, cached: int) -> int | None:
        """The tokens of its prompt that were found in the cache, where clients may know."""
        return cached if self._service.config.enable_prompt_tokens_details else None

    def usage(self, request: RequestOutput) -> TurnUsage:
        service, metrics = self._service, request.metrics
        cached = self.told(metrics.cached_tokens)
        counts = [
            service.speech.reasoning_tokens(output.token_ids, self._state)
            for output in request.outputs
        ]
        reasoning = None if None in counts else sum(count or 0 for count in counts)
        return TurnUsage(metrics.num_prompt_tokens, metrics.num_output_tokens, cached, reasoning)

    def call_id(self) -> str:
        """A new id for a call: whatever its chat template takes back."""
        length = self._service.speech.id_length
        letters = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length or _ID_LENGTH))
        return letters if length else f"call_{letters}"

    def _listen(self) -> Listener:
        return Listener(self._service.speech.parser(self._tools, self._begun), self._turn)


async def begin(service: Service, turn: ConversationTurn) -> PreparedChat:
    """Check a turn and render its prompt. RequestError where it cannot be served."""
    with in_callers_words(turn.field_names):
        service.check_answer(turn.params)
        read = partial(_read, service, turn)
        messages, variables = await service.bodies.done(read, large=turn.large)
        with service.reserve():
            chat = service.engine.begin_chat(messages, variables, turn.form, service.speech.begins)
            token_ids, begun = await chat
        origin = turn.options.get("origin", Origin())._replace(operation="chat")
        prompt = {"prompt_token_ids": token_ids, **turn.options, "origin": origin}
        if turn.marks:
            look = partial(found_in, turn.marks, token_ids, service.speech.tokenizer)
            found = await service.bodies.done(look, large=len(token_ids) > LONG)
            prompt["keep"] = [*prompt.get("keep", ()), *found]
        prepare = partial(PreparedChat, service, prompt=prompt, begun=begun)
        prepared = await _prepared(service, turn, prepare)
    turn.warnings.extend(one.warning for one in prepared.widened)
    return prepared


def _read(service: Service, turn: ConversationTurn) -> tuple[list[Message], Mapping[str, Any]]:
    """What the chat template is given: messages, and variables beside them."""
    check_tools(turn.tools, turn.choice)
    _check_dialect(service, turn)
    variables, speech = _variables(service, turn), service.speech
    template = turn.rendering.get("chat_template") or speech.tokenizer.chat_template
    messages, rules = turn.messages, tuple(service.config.volatile_prompt_lines)
    if rules:
        messages = settled(messages, rules_of(rules), turn.warnings)
    return for_template(messages, speech.id_length, template), variables


async def _prepared(
    service: Service, turn: ConversationTurn, prepare: Callable[..., PreparedChat]
) -> PreparedChat:
    """A chat in which tools can be called that must be, whatever their schemas say.

    What no grammar can be made of is found out tool by tool, for a while.
    """
    must = turn.choice.mode == "required"
    loose = [tool for tool in turn.tools if must and tool.parameters and not tool.strict]

    async def compiled(some: ConversationTurn, unkept: Collection[str] = ()) -> PreparedChat:
        chat = prepare(turn=some, unkept=unkept)
        if loose:
            with service.reserve():
                await service.engine.check(chat.params)
        return chat

    try:
        return await compiled(turn)
    except RequestError:
        if not loose or service.speech.writing is None:
            raise
    unkept, deadline = set[str](), time.monotonic() + _LONGEST_SEARCH
    for tool in loose:
        try:
            if time.monotonic() < deadline:
                await compiled(replace(turn, tools=[tool], choice=ToolChoice.named(tool.name)))
                continue
        except RequestError:
            pass
        unkept.add(tool.name)
    return prepare(turn=turn, unkept=unkept or {tool.name for tool in loose})


def _listens(service: Service, turn: ConversationTurn) -> bool:
    """Whether the output is searched for calls."""
    mode = turn.choice.mode
    return mode == "required" or (mode == "auto" and service.config.enable_auto_tool_choice)


def _check_dialect(service: Service, turn: ConversationTurn) -> None:
    if not turn.tools or not _listens(service, turn) or service.speech.reads_calls:
        return
    raise RequestError(
        "how this model calls tools is not known from its chat template: tools need "
        "--tool-call-parser",
        "tools",
    )


def _variables(service: Service, turn: ConversationTurn) -> Mapping[str, Any]:
    """What the chat template is given beside the messages."""
    own = _TEMPLATE_OWN & turn.variables.keys()
    if own:
        raise RequestError(
            f"chat_template_kwargs may not hold {', '.join(sorted(own))}", "chat_template_kwargs"
        )
    given: dict[str, Any] = {}
    exclude = service.config.exclude_tools_when_tool_choice_none and turn.choice.mode == "none"
    if turn.tools and not exclude:
        given["tools"] = [tool.for_template() for tool in turn.tools]
    if turn.reasoning_effort is not None:
        given["reasoning_effort"] = turn.reasoning_effort
        given["enable_thinking"] = turn.reasoning_effort != "none"
    defaults = service.config.default_chat_template_kwargs or {}
    return {**defaults, **given, **turn.rendering, **turn.variables}


_DIGITS = string.digits + string.ascii_letters


# What chat templates call the reasoning of a message.
_NAMES = ("reasoning_content", "reasoning", "thinking", "thought")
# Some have it as a part of the content: Mistral's.
_IN_PARTS = re.compile(r"""type['"]?\]?\s*==\s*['"]thinking['"]""")
_BY_NAME = re.compile(r"reasoning_content|\.reasoning\b|\.thinking\b")
# Some take it for the content of a message with calls, or the other way round: gpt-oss's.
_ONE_OF_BOTH = "both content and thinking"
# Some know messages with calls by their having no content: DeepSeek R1's.
_CALLS_ALONE = re.compile(r"""['"]assistant['"] and message\[['"]content['"]\] is none""")


def said(role: str, content: str, **more: object) -> Message:
    """A message in OpenAI's form, with as much of ``more`` as there is."""
    return {"role": role, "content": content, **{name: v for name, v in more.items() if v}}


def called(id: str | None, name: str, arguments: object) -> dict[str, Any]:
    """A call of the assistant's, in that form."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def for_template(
    messages: Sequence[Message], id_length: int | None, template: str = ""
) -> list[Message]:
    """Messages in OpenAI's form, with arguments as objects and content as a text.

    id_length: characters that the template wants a call's id to have; others are shortened, the
    same to the same.
    template: the chat template, in whose manner reasoning and calls are put.
    """
    put = [_message(message, id_length) for message in _with_ids(messages)]
    if _CALLS_ALONE.search(template):
        put = [part for message in put for part in _apart(message)]
    in_parts = _IN_PARTS.search(template) and not _BY_NAME.search(template)
    for message in put:
        reasoning = message.get("reasoning_content")
        if not reasoning:
            continue
        if _ONE_OF_BOTH in template and message.get("tool_calls") and message["content"]:
            reasoning += "\n\n" + message["content"]
            message["content"] = ""
        message.update(dict.fromkeys(_NAMES, reasoning))
        if in_parts:
            text = {"type": "text", "text": message["content"] or ""}
            message["content"] = [{"type": "thinking", "thinking": reasoning}, text]
    return [*put]


def _with_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls have ids, and results those of the calls that they answer.

    Ollama's clients give none, and some templates ask for them.
    """
    number = 0
    unanswered = OrderedDict[str, None]()  # whose first is found at once, however many are gone
    for message in messages:
        put = {**message}
        if calls := message.get("tool_calls"):
            ids = [call.get("id") or f"call_{number + index}" for index, call in enumerate(calls)]
            put["tool_calls"] = [{**call, "id": id} for call, id in zip(calls, ids, strict=True)]
            number += len(ids)
            unanswered = OrderedDict.fromkeys(ids)
        elif message.get("role") == "tool" and unanswered:
            answered = message.get("tool_call_id") or next(iter(unanswered))
            put["tool_call_id"] = answered
            unanswered.pop(answered, None)
        yield put


def _message(message: Message, id_length: int | None) -> dict[str, Any]:
    put = {**message, "content": message.get("content") or ""}
    if message.get("tool_calls"):
        put["tool_calls"] = [_call(call, id_length) for call in message["tool_calls"]]
    if id_length is not None and message.get("tool_call_id"):
        put["tool_call_id"] = _shortened(message["tool_call_id"], id_length)
    return put


def _apart(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a message says, and its calls as one that says nothing."""
    if not message.get("tool_calls"):
        yield message
        return
    if message["content"]:
        yield {key: value for key, value in message.items() if key != "tool_calls"}
        message.pop("reasoning_content", None)
    yield {**message, "content": None}


def _call(call: Mapping[str, Any], id_length: int | None) -> Mapping[str, Any]:
    function = call["function"]
    put = {**call, "function": {**function, "arguments": _arguments(function["arguments"])}}
    if id_length is not None and call.get("id"):
        put["id"] = _shortened(call["id"], id_length)
    return put


def _arguments(given: object) -> object:
    """An object, if it is the JSON of one, or nearly; others stay as the model wrote them."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given or "{}")
        except (ValueError, RecursionError):
            value = json.loads(mended(given) or "null")
    return GivenArguments(value) if isinstance(value, dict) else given


def _shortened(id: str, length: int) -> str:
    if len(id) == length and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode()).digest(), "big")
    return "".join(_DIGITS[number // len(_DIGITS) ** i % len(_DIGITS)] for i in range(length))
