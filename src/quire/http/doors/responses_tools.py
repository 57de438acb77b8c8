"""The tools of a request for a response, and as what the model knows them.

A model knows functions by one name each. A namespace's are flattened to ``namespace__name``; a
custom tool, which takes any text, is a function of one text, kept to no grammar. What only OpenAI
can run is left out. The caller gets a warning, or a refusal where such a tool must be called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quire.core.errors import RequestError, shown
from quire.http.answers.rendering import Json
from quire.http.body_fields import NOT_OURS, Listed, Name, Strict, at_most, check_depth, expecting
from quire.http.chats.speech import LONGEST_NAME, MOST_TOOLS, Tool, ToolChoice
from quire.http.openai.requests import JsonObject

_HostedType = Literal[
    "apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview",
    "file_search", "image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell",
    "tool_search", "web_search", "web_search_2025_08_26", "web_search_preview",
    "web_search_preview_2025_03_11",
]  # fmt: skip
_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_SEPARATOR, _DIGITS = "__", 8


class ToolOrigin(NamedTuple):
    """What a function of the model's is to the caller."""

    name: str
    namespace: str | None = None
    custom: bool = False


class ResponsesTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool = False
    defer_loading: bool = False  # the model always gets all
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: JsonObject | None = None  # what its caller makes of it is not looked at

    def as_tool(self, name: str) -> Tool:
        return Tool(name, self.description, self.parameters, self.strict)

    def echoed(self) -> Json:
        names = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in names}


class TextInput(Strict):
    type: Literal["text"] = "text"


class GrammarInput(Strict):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Strict):
    """A tool that takes a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] = TextInput()
    defer_loading: bool = False  # the model always gets all
    allowed_callers: list[Literal["direct"]] | None = None

    def as_tool(self, name: str) -> Tool:
        description = self.description
        if isinstance(self.format, GrammarInput):
            form = f"The input must fit this {self.format.syntax} grammar:\n"
            description = "\n\n".join(filter(None, [description, form + self.format.definition]))
        return Tool(name, description, _INPUT)

    def echoed(self) -> Json:
        return self.model_dump(exclude_none=True, exclude={"defer_loading"})


class NamespaceTool(Strict):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[
        Listed[Annotated[ResponsesTool | CustomTool, Field(discriminator="type")]],
        at_most(MOST_TOOLS, "tools"),
    ]

    def echoed(self) -> Json:
        described = {} if self.description is None else {"description": self.description}
        tools = [tool.echoed() for tool in self.tools]
        return {"type": self.type, "name": self.name, **described, "tools": tools}


class HostedTool(BaseModel):
    """One that OpenAI runs, or that its models alone know, or the choice of one."""

    model_config = ConfigDict(extra="allow")

    type: _HostedType

    @model_validator(mode="before")
    @classmethod
    def _bound(cls, data: Any) -> Any:
        return check_depth(data, levels=16, most_values=4096)

    def echoed(self) -> Json:
        return self.model_dump(exclude_none=True)


AnyTool = Annotated[
    ResponsesTool | CustomTool | NamespaceTool | HostedTool, Field(discriminator="type")
]


class ResponsesNamedTool(Strict):
    type: Literal["function", "custom"]
    name: str
    namespace: Name | None = None


_Named = Annotated[ResponsesNamedTool | HostedTool, Field(discriminator="type")]


class ResponsesAllowedTools(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Listed[_Named], at_most(MOST_TOOLS, "tools")]


AnyChoice = Annotated[
    Literal["auto", "none", "required"] | ResponsesNamedTool | HostedTool | ResponsesAllowedTools,
    expecting('"auto", "none", "required" or {"type": "function", "name": ...}'),
]


@dataclass(frozen=True)
class Offered:
    """A request's tools as the model knows them.

    origins: by the names that the model knows. left_out: why the model does not get a tool, by its
    type. unkept: what of a tool is not kept to, by its name.
    """

    tools: Sequence[Tool]
    choice: ToolChoice
    origins: Mapping[str, ToolOrigin]
    left_out: Mapping[str, str]
    unkept: Mapping[str, str]

    @classmethod
    def of(cls, tools: Iterable[Any], choice: Any) -> Offered:
        offered: list[Tool] = []
        origins: dict[str, ToolOrigin] = {}
        left_out: dict[str, str] = {}
        unkept: dict[str, str] = {}
        for tool, namespace in _flat(tools):
            if isinstance(tool, HostedTool):
                left_out[tool.type] = f"the tool {tool.type} was left out: {NOT_OURS}"
                continue
            name = flat_name(namespace, tool.name)
            if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput):
                unkept[name] = f"the input of the tool {shown(name)} is kept to no grammar here"
            offered.append(tool.as_tool(name))
            origins[name] = ToolOrigin(tool.name, namespace, isinstance(tool, CustomTool))
        chosen = _chosen(choice, origins, left_out, unkept)
        return cls(offered, chosen, origins, left_out, unkept)

    @property
    def warnings(self) -> list[str]:
        """Why tools were left out, and what of others is not kept to, for the caller."""
        return [*self.left_out.values(), *self.unkept.values()]

    def origin(self, name: str) -> ToolOrigin:
        return self.origins.get(name, ToolOrigin(name))


def flat_name(namespace: str | None, name: str) -> str:
    """The model's name of a tool, cut to what names may have."""
    if not namespace:
        return name
    whole = namespace + _SEPARATOR + name
    if len(whole) <= LONGEST_NAME or len(name) > LONGEST_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
    return f"{whole[: LONGEST_NAME - _DIGITS - 1]}_{digest}"


def input_of(arguments: str) -> str:
    """What a custom tool is given, of the arguments that the model has written for it."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    given = value.get("input") if isinstance(value, dict) and len(value) == 1 else None
    return given if isinstance(given, str) else arguments


def arguments_of(text: str) -> str:
    """The other way: a custom tool's input as the arguments of a function."""
    return json.dumps({"input": text}, ensure_ascii=False)


def _flat(tools: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from ((inner, tool.name) for inner in tool.tools)
        else:
            yield tool, None


def _chosen(
    choice: Any,
    origins: Mapping[str, ToolOrigin],
    left_out: Mapping[str, str],
    unkept: Mapping[str, str],
) -> ToolChoice:
    """RequestError where a tool must be called that is left out, or not kept to."""
    wrong = {**left_out, **unkept}
    match choice:
        case "required":
            counting = tuple(name for name in origins if name not in unkept)
            _check_any(counting, wrong)
            return ToolChoice("required", counting if unkept else None)
        case str():
            return ToolChoice(choice)  # type: ignore[arg-type]  # its type has checked it
        case ResponsesAllowedTools(mode=mode, tools=tools):
            names = [_known(one, origins) for one in tools if isinstance(one, ResponsesNamedTool)]
            if mode == "required":
                names = [name for name in names if name not in unkept]
                _check_any(names, wrong)
            return ToolChoice(mode, tuple(names)) if names else ToolChoice("none")
    name = choice.type if isinstance(choice, HostedTool) else _known(choice, origins)
    if isinstance(choice, HostedTool) or name in unkept:
        why = wrong.get(name, f"Quire does not have {name}")
        raise RequestError(f"tool_choice must not be {name}: {why}", "tool_choice")
    return ToolChoice.named(name)


def _check_any(counting: Collection[str], wrong: Mapping[str, str]) -> None:
    if not counting and wrong:
        why = next(iter(wrong.values()))
        raise RequestError(f"tool_choice must not be required: {why}", "tool_choice")


def _known(named: ResponsesNamedTool, origins: Mapping[str, ToolOrigin]) -> str:
    """The model's name of a tool that a caller names in full, or as its namespace does."""
    whole = flat_name(named.namespace, named.name)
    found = [name for name, origin in origins.items() if origin.name == named.name]
    if whole in origins or named.namespace or not found:
        return whole
    if len(found) > 1:
        raise RequestError(
            f"tool_choice names {shown(named.name)}, which several namespaces have: "
            f"{', '.join(found[:4])}",
            "tool_choice",
        )
    return found[0]
