"""The fields of bodies: types that complain once, in words, and at little cost.

pydantic would list all that is wrong with a body, however much that is; here it stops at the first
item of a list, or the first unknown name, that is wrong. ``unknown_fields`` tells which of those
pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from quire.core.errors import RequestError, shown
from quire.http.unknown_fields import Passed, as_patterns, asks_for_nothing, unknown
from quire.http.widened import Widened, kept_to
from quire.text.params import SamplingParams, StructuredOutputs
from quire.text.params.parameters import description

_Item = TypeVar("_Item")
Listed = Annotated[list[_Item], Field(fail_fast=True)]  # one wrong item is enough to say so
Ids = Listed[int]
Texts = Listed[str]
Name = Annotated[str, Field(max_length=256)]  # or a salt
RequestId = Annotated[str, Field(max_length=128, pattern=r"^[\x21-\x7e]+$")]
MOST_TEXTS = 2048  # of one request: OpenAI's own maximum for embeddings
_TRUNCATED = "truncate_prompt_tokens"
_MOST_EXACT = 2**53  # up to which floats are exact


class Strict(BaseModel):
    """A JSON object whose values have the right types already, and whose unknown fields may pass.

    neutral: fields that Quire does not have, with the values under which they change nothing.
    idle: fields that change no text whatever their values.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    idle: ClassVar[frozenset[str]] = frozenset()
    _names: ClassVar[frozenset[str]] = frozenset()  # of its fields, as bodies have them
    _warnings: list[str] = PrivateAttr(default_factory=list)
    _large: bool = PrivateAttr(default=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls._names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @property
    def warnings(self) -> list[str]:
        """What the caller should know of a body that is served: what was left out of it, and why.

        Doors may add to it.
        """
        return self._warnings

    @property
    def large(self) -> bool:
        """Whether it came as so much that what is made of it is made apart, as it was parsed."""
        return self._large

    def came_large(self) -> None:
        self._large = True

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        present = {}
        for name, value in data.items():
            if name in cls._names:
                if value is not None:
                    present[name] = _as_whole(value)
            elif not cls._passes(name, value, info.context):
                raise unknown(name, cls._names)
        return present

    @classmethod
    def _passes(cls, name: str, value: Any, passed: Passed | None) -> bool:
        if value is None or name in cls.idle or value in cls.neutral.get(name, ()):
            return True
        return asks_for_nothing(name, value) or (
            passed is not None and passed.leaves_out(name, cls._names)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        schema = handler.resolve_ref_schema(handler(core))
        neutral = {name: {"enum": [*values, None]} for name, values in cls.neutral.items()}
        passing = {**neutral, **{name: {} for name in cls.idle}}
        if passing:
            schema["patternProperties"] = as_patterns(passing)
        return schema


NOT_OURS = "Quire does not have it"


class Hosted(BaseModel):
    """What another server has done in a conversation begun there.

    It is left out, with a warning: what came of it is in texts. what: it is called. field: that
    holds it.
    """

    model_config = ConfigDict(extra="allow")
    what: ClassVar[str]
    field: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any, info: ValidationInfo) -> Any:
        kind = data["type"]
        if info.context is None or not info.context.leave_out(kind, NOT_OURS, cls.what):
            raise RequestError(f"{cls.field} may hold no {kind}: {NOT_OURS}", cls.field)
        return {"type": kind}


def _as_whole(value: Any) -> Any:
    """5 of 5.0: some clients have one type for all numbers. A float's field takes either."""
    whole = type(value) is float and value.is_integer() and abs(value) <= _MOST_EXACT
    return int(value) if whole else value


def given_of(body: BaseModel, *names: str) -> dict[str, Any]:
    """The given fields of a body, by name."""
    fields = ((name, getattr(body, name)) for name in names)
    return {name: value for name, value in fields if value is not None}


def doc(default: Any, text: str, **more: Any) -> Any:
    """A field with what /docs says of it. ``more``: bounds that it states; others check them."""
    examples = more.pop("examples", None)
    names = {"ge": "minimum", "le": "maximum"}
    bounds = {names[name]: value for name, value in more.items()}
    return Field(default, description=text, examples=examples, json_schema_extra=bounds or None)


def expecting(what: str) -> WrapValidator:
    """One complaint about a union instead of one for each of its members."""

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("expected", f"must be {what}") from error

    return WrapValidator(validate)


def between(low: int, high: int) -> AfterValidator:
    """An integer in the range, ``low`` and ``high`` in."""

    def validate(value: int) -> int:
        if not low <= value <= high:
            raise PydanticCustomError("range", f"must be from {low:,} to {high:,}")
        return value

    return AfterValidator(validate)


def at_most(count: int, what: str) -> BeforeValidator:
    """A list or an object of at most ``count`` entries, counted before they are looked at."""

    def validate(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > count:
            raise PydanticCustomError("length", f"may hold at most {count:,} {what}")
        return value

    return BeforeValidator(validate)


def no_deeper(levels: int, most_values: int) -> AfterValidator:
    """Any JSON that holds at most ``most_values`` values in ``levels`` levels."""
    return AfterValidator(lambda value: check_depth(value, levels, most_values))


def check_depth(value: Any, levels: int, most_values: int) -> Any:
    level, count = [value], 0
    for _ in range(levels):
        level = [item for outer in level for item in _inside(outer)]
        count += len(level)
        if count > most_values:
            raise PydanticCustomError("size", f"may hold at most {most_values:,} values")
    if any(isinstance(item, (dict, list)) for item in level):
        raise PydanticCustomError("depth", f"may be at most {levels} levels deep")
    return value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def texts_of(field: str, given: Any) -> list[Any]:
    """One or several texts, or lists of token ids, as a list; RequestError for none or too many."""
    if not given:
        raise RequestError(f"{field} must not be empty", field)
    texts = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
    if len(texts) > MOST_TEXTS:
        raise RequestError(f"{field} may hold at most {MOST_TEXTS:,} texts", field)
    return texts


def biases(given: dict[str, Any]) -> dict[int, float]:
    """logit_bias: the keys of JSON's objects are texts."""
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            message = f"logit_bias must map token ids to biases, got {shown(key)}"
            raise RequestError(message, "logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            name = f"logit_bias.{key}"
            raise RequestError(f"{name} must be a number, got {shown(bias)}", name)
    return {int(key): bias for key, bias in given.items()}


def most_tokens(given: int | None, max_model_len: int | None, output: int = 0) -> int | None:
    """The number of tokens that are kept; None: all.

    output: tokens for which -1 leaves room.
    """
    if given == 0:
        raise RequestError(f"{_TRUNCATED} must be at least 1, or -1 for as many as fit", _TRUNCATED)
    if given is None or max_model_len is None:
        return None if given == -1 else given
    if given > max_model_len:
        raise RequestError(
            f"{_TRUNCATED} must be at most max_model_len, {max_model_len}, got {given}", _TRUNCATED
        )
    return max(1, max_model_len - output) if given == -1 else given


# How JSON has the types that SamplingParams are annotated with.
_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bool | str": Annotated[bool | Literal["never"], expecting('true, false or "never"')],
    "str | Sequence[str]": Annotated[str | Texts, expecting("a string or a list of strings")],
    "Sequence[str]": Texts,
    "Sequence[int]": Ids,
    "Mapping[int, float]": Annotated[dict[str, Any], AfterValidator(biases)],
    "StructuredOutputs": Annotated[dict[str, Any], AfterValidator(StructuredOutputs.of)],
}


def _body_fields() -> Iterator[tuple[str, Any]]:
    """Absent, or null, they are as the model's generation config says, or as in SamplingParams."""
    for parameter in fields(SamplingParams):
        if parameter.metadata["http"]:
            kind = _TYPES[str(parameter.type).removesuffix(" | None")]
            # Not bounds of pydantic's own: SamplingParams checks, with one message for all doors.
            schema = dict(parameter.metadata["allowed"].schema)
            schema.pop("enum", None)  # the type says it
            field = Field(default=None, description=description(parameter))
            yield parameter.name, (Annotated[kind, Field(json_schema_extra=schema)] | None, field)


if TYPE_CHECKING:

    class SamplingFields(Strict):
        def __getattr__(self, name: str) -> Any: ...
else:
    SamplingFields = create_model("SamplingFields", __base__=Strict, **dict(_body_fields()))


_GUIDED = {  # vLLM's older names first
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "json_schema": "json",  # llama.cpp's from here on
    "grammar": "grammar",
}


class JsonSchema(Strict):
    """OpenAI's. A schema is kept to in all that it says, unless ``strict`` is false."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    name: Name = ""  # nobody reads it
    description: str | None = None
    json_schema: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None

    def asked(self) -> tuple[StructuredOutputs, list[Widened]]:
        """What the text must be like, and the schema, if that is wider."""
        return kept_to(self.json_schema, strict=self.strict)


class ResponseFormat(Strict):
    """OpenAI's response_format; structural_tag is vLLM's."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: Texts | None = None
    format: dict[str, Any] | None = None
    own_schema: dict[str, Any] | None = Field(default=None, alias="schema")  # llama.cpp's

    def structured_outputs(self) -> StructuredOutputs | None:
        """What the text must be like; None: any text."""
        match self.type:
            case "json_object" | "json_schema" if self.own_schema is not None:
                return StructuredOutputs(json=self.own_schema)
            case "json_object":
                return StructuredOutputs(json_object=True)
            case "json_schema" if self.json_schema is None:
                raise RequestError(
                    "response_format of type json_schema must hold json_schema", "response_format"
                )
            case "json_schema":
                assert self.json_schema is not None
                return self.json_schema.asked()[0]
            case "structural_tag":
                tag = self.model_dump(exclude_none=True, exclude={"own_schema"})
                return StructuredOutputs(structural_tag=tag)
        return None


class StructuredFields(SamplingFields):
    """The ways in which a body may ask for structured text. One of them at a time."""

    response_format: ResponseFormat | None = doc(None, "what the text must be: OpenAI's way to say")
    guided_json: (
        Annotated[str | dict[str, Any], expecting("a JSON schema: an object, or its text")] | None
    ) = doc(None, "structured_outputs.json, as vLLM had it")
    guided_regex: str | None = doc(None, "structured_outputs.regex, as vLLM had it")
    guided_choice: Texts | None = doc(None, "structured_outputs.choice, as vLLM had it")
    guided_grammar: str | None = doc(None, "structured_outputs.grammar, as vLLM had it")
    guided_whitespace_pattern: str | None = doc(
        None, "structured_outputs.whitespace_pattern, as vLLM had it"
    )
    json_schema: dict[str, Any] | None = doc(None, "structured_outputs.json, as llama.cpp has it")
    grammar: str | None = doc(None, "structured_outputs.grammar, as llama.cpp has it")

    @property
    def structure_field(self) -> str:
        """The field that asks for structured text; RequestError if several do."""
        given = ["structured_outputs"] if self.structured_outputs is not None else []
        if self.response_format is not None and self.response_format.type != "text":
            given.append("response_format")
        guided = [*self._guided]
        ours = [name for name in guided if name.startswith("guided_")][:1]
        given += ours + [name for name in guided if not name.startswith("guided_")]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} ask for different texts: give one", given[1])
        return given[0] if given else "structured_outputs"

    @property
    def widened(self) -> list[Widened]:
        """The schema, if the text is held to a wider one."""
        form = self.response_format
        schema = form.json_schema if form is not None and form.type == "json_schema" else None
        return schema.asked()[1] if schema is not None else []

    def wanted_structure(self) -> StructuredOutputs | None:
        """What the text must be like."""
        match self.structure_field:
            case "structured_outputs":
                given: StructuredOutputs | None = self.structured_outputs
                return given
            case "response_format":
                assert self.response_format is not None
                return self.response_format.structured_outputs()
        return StructuredOutputs(**{_GUIDED[old]: value for old, value in self._guided.items()})

    @property
    def _guided(self) -> dict[str, Any]:
        """Those of other APIs that are there; llama.cpp's clients send empty grammars."""
        given = given_of(self, *_GUIDED)
        return {name: value for name, value in given.items() if (name, value) != ("grammar", "")}


@contextmanager
def in_callers_words(names: Mapping[str, str], *, in_text: bool = False) -> Iterator[None]:
    """Name a refused field as the caller wrote it: the engine's "prompt" is a chat's "messages".

    in_text: in the message too, where an API's clients see nothing else.
    """
    try:
        yield
    except RequestError as error:
        theirs = names.get(error.field, error.field)
        if in_text:
            error.args = (re.sub(rf"\b{re.escape(error.field)}\b", theirs, str(error)),)
        error.field = theirs
        raise
