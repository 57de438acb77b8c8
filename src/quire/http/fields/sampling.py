"""The fields of SamplingParams as those of a body, with their help and ranges for OpenAPI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.core.protocol.parameters import description
from quire.http.fields.strict import Ids, Strict, Texts, biases, expecting

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
