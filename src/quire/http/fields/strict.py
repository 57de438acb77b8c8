"""What the fields of bodies are made of: types that complain once, in words, and at little cost.

pydantic would list all that is wrong with a body, however much that is; here it stops at the first
item of a list, or the first unknown name, that is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from quire.core.errors import RequestError, shown
from quire.http.fields.others import asks_for_nothing

Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Name = Annotated[str, Field(max_length=256)]  # or a salt
RequestId = Annotated[str, Field(max_length=128, pattern=r"^[\x21-\x7e]+$")]
_TRUNCATED = "truncate_prompt_tokens"


class Strict(BaseModel):
    """A JSON object without unknown fields, whose values have the right types already."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        present = {
            name: value
            for name, value in data.items()
            if value is not None and (name in cls.model_fields or not asks_for_nothing(name, value))
        }
        unknown = [name for name in present if name not in cls.model_fields]
        for name in unknown[1:]:  # one is enough to complain of
            del present[name]
        return present


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
    """The value, if it holds no more than that."""
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


def most_tokens(asked: int | None, max_model_len: int | None, output: int = 0) -> int | None:
    """The number of tokens that are kept; None: all.

    output: tokens for which -1 leaves room.
    """
    if asked == 0:
        raise RequestError(f"{_TRUNCATED} must be at least 1, or -1 for as many as fit", _TRUNCATED)
    if asked is None or max_model_len is None:
        return None if asked == -1 else asked
    if asked > max_model_len:
        raise RequestError(
            f"{_TRUNCATED} must be at most max_model_len, {max_model_len}, got {asked}", _TRUNCATED
        )
    return max(1, max_model_len - output) if asked == -1 else asked
