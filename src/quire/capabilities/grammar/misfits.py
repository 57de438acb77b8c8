"""Whether JSON fits a schema, by JSON Schema's own rules: for what no grammar has kept it to.

It runs in a box, for a client's expressions may take for ever here. They are Python's, as in the
library that most of those check with who get the answer. References lead to the schema itself, and
nothing is fetched.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from quire.core.errors import RequestError, shown
from quire.text import exact_json

_LONGEST_REASON = 300  # characters


def misfit(schema_text: str, text: str) -> str:
    """Why a text does not fit a schema; "" if it does.

    Numbers are compared as they are written, with no float between. RequestError where it is not
    known whether it fits: the schema is none, or refers to what is not in it.
    """
    schema = exact_json.read(schema_text)
    try:
        value = exact_json.read(text)
    except ValueError:
        return f"it is no JSON: {shown(text)}"
    nowhere: Registry[Any] = Registry()
    try:
        validator = _draft(schema)(schema, registry=nowhere)
        validator.check_schema(schema)
        found = best_match(validator.iter_errors(value))
    except (SchemaError, Unresolvable) as error:
        why = str(getattr(error, "message", error))[:_LONGEST_REASON]
        raise RequestError(f"the schema is not valid by itself: {why}", "") from None
    if found is None:
        return ""
    instance = exact_json.write(found.instance)[:_LONGEST_REASON]
    return f"{instance} at {found.json_path} is not as {found.validator} says"


def _draft(schema: Any) -> Any:
    """The rules of the draft that a schema names; of the newest, where it names none."""
    named = schema if isinstance(schema, dict) and isinstance(schema.get("$schema"), str) else {}
    draft: Any = validator_for(named, default=Draft202012Validator)
    return extend(draft, type_checker=draft.TYPE_CHECKER.redefine("integer", _is_integer))


def _is_integer(_: object, value: object) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)
