"""The fields of SamplingParams as those of a body, with their help and ranges for OpenAPI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, create_model

from quire.core.errors import RequestError
from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.core.protocol.parameters import description
from quire.http.fields.strict import Ids, Name, Strict, Texts, biases, doc, expecting

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
            told = Field(default=None, description=description(parameter))
            yield parameter.name, (Annotated[kind, Field(json_schema_extra=schema)] | None, told)


if TYPE_CHECKING:

    class SamplingFields(Strict):
        def __getattr__(self, name: str) -> Any: ...
else:
    SamplingFields = create_model("SamplingFields", __base__=Strict, **dict(_body_fields()))


_GUIDED = {  # vLLM's older names
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}


class JsonSchema(Strict):
    """OpenAI's. A schema is always kept to, whether it says ``strict`` or not."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    name: Name
    description: str | None = None
    json_schema: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool = False


class ResponseFormat(Strict):
    """What OpenAI's API calls so; structural_tag is vLLM's."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: Texts | None = None
    format: dict[str, Any] | None = None

    def structured_outputs(self) -> StructuredOutputs | None:
        """None: any text."""
        match self.type:
            case "json_object":
                return StructuredOutputs(json_object=True)
            case "json_schema" if self.json_schema is None:
                raise RequestError(
                    "response_format of type json_schema must hold json_schema", "response_format"
                )
            case "json_schema":
                assert self.json_schema is not None
                return StructuredOutputs(json=self.json_schema.json_schema)
            case "structural_tag":
                return StructuredOutputs(structural_tag=self.model_dump(exclude_none=True))
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

    @property
    def structure_field(self) -> str:
        """Which of them this one does; RequestError if several do."""
        given = ["structured_outputs"] if self.structured_outputs is not None else []
        if self.response_format is not None and self.response_format.type != "text":
            given.append("response_format")
        given += [name for name in _GUIDED if getattr(self, name) is not None][:1]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} ask for different texts: give one", given[1])
        return given[0] if given else "structured_outputs"

    def asked_structure(self) -> StructuredOutputs | None:
        """What the text must be like."""
        match self.structure_field:
            case "structured_outputs":
                asked: StructuredOutputs | None = self.structured_outputs
                return asked
            case "response_format":
                assert self.response_format is not None
                return self.response_format.structured_outputs()
        guided = {name: getattr(self, old) for old, name in _GUIDED.items()}
        return StructuredOutputs(**guided)
