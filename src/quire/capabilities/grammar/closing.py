"""Objects that have no properties but those that their schema names.

By JSON Schema they may have others where ``additionalProperties`` is left out, and models invent
them. What comes of this allows a part of what the schema does, so it has to be in plain words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from quire.capabilities.grammar.opposites import listed
from quire.capabilities.grammar.subschemas import BY_NAME, VALUES, Json, pointed

_OPENED = {"additionalProperties", "unevaluatedProperties"}
_PARTS = ("allOf", "anyOf", "oneOf", "$ref")  # what they say is of the same value
_OF_OBJECTS = {
    *(*_OPENED, "properties", "patternProperties", "required"),
    *("minProperties", "maxProperties", "propertyNames"),
}
_BELOW = {"properties", "patternProperties", "items", "prefixItems", "additionalItems"}
_BELOW |= _OPENED  # what stands there is of another value


def closed(schema: Any) -> Any:
    """A schema whose objects have those properties only that it names, unless it opens them."""
    return _Closing(schema).of(schema)


class _Closing:
    """Closes one schema. A schema in it is alone if no other one binds the same values."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._alone, self._together = set[int](), set[int]()
        todo = [(root, True)]
        while todo:
            schema, alone = todo.pop()
            known = self._alone if alone else self._together
            if isinstance(schema, dict) and id(schema) not in known:
                known.add(id(schema))
                todo += self._inner(schema, alone)

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.of(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        found: Json = {}
        for key, value in schema.items():
            if key in BY_NAME and isinstance(value, dict):
                found[key] = {name: self.of(one) for name, one in value.items()}
            else:
                found[key] = value if key in VALUES else self.of(value)
        lone = id(schema) in self._alone and id(schema) not in self._together
        if lone and (names := self._names(schema)) is not None:
            own = found.get("properties", {})
            found["properties"] = {**own, **{name: True for name in names if name not in own}}
            found["additionalProperties"] = False
        return found

    def _inner(self, schema: Json, alone: bool) -> Iterator[tuple[Any, bool]]:
        """The schemas in one, and whether each is alone with its values."""
        passes = alone and _passes(schema)
        below = alone and not any(
            one is not schema and _speaks_of_others(one) for one in self._together_with(schema)
        )
        for key, value in schema.items():
            if key in VALUES or key in ("$defs", "definitions"):
                continue
            if key == "$ref":
                yield pointed(self._root, value), passes
                continue
            named = key in BY_NAME and isinstance(value, dict)
            each = value.values() if named else value if isinstance(value, list) else [value]
            lone = below if key in _BELOW else passes and key in ("allOf", "anyOf")
            yield from ((one, lone) for one in each)

    def _together_with(self, schema: Any) -> Iterator[Any]:
        """A schema, and all that say something of the same value by its words."""
        todo, known = [schema], set[int]()
        while todo:
            one = todo.pop(0)
            if id(one) in known:
                continue
            known.add(id(one))
            yield one
            for part in _PARTS if isinstance(one, dict) else ():
                if part == "$ref" and part in one:
                    todo.append(pointed(self._root, one[part]))
                else:
                    todo += listed(one, part)

    def _names(self, schema: Json) -> Collection[str] | None:
        """The names that an object may have; None where it is to stay open, or its parts close."""
        if _passes(schema):
            return None
        names, lists, least = dict[str, None](), False, 0
        for one in self._together_with(schema):
            if isinstance(one, bool):
                continue
            if not isinstance(one, dict) or _OPENED & one.keys():
                return None
            properties, required = one.get("properties", {}), one.get("required", [])
            if not isinstance(properties, dict) or not isinstance(required, list):
                return None
            by_key = "patternProperties" in one
            if by_key and one is not schema:
                return None
            named = properties.values()
            lists |= by_key or (
                "properties" in one and (not named or any(it is not False for it in named))
            )
            names |= dict.fromkeys([*properties, *map(str, required)])
            many = one.get("minProperties", 0)
            least = max(least, many if isinstance(many, int) and not by_key else 0)
        return names if lists and least <= len(names) else None


def _passes(schema: Json) -> bool:
    """Whether a schema binds objects only by one schema in it, or by a choice of schemas."""
    parts = [key for key in _PARTS if key in schema]
    several = "allOf" in parts and len(listed(schema, "allOf")) != 1
    return len(parts) == 1 and not several and not schema.keys() & _OF_OBJECTS


def _speaks_of_others(schema: Any) -> bool:
    """Whether it says something of values within one."""
    if not isinstance(schema, dict):
        return False
    properties = schema.get("properties", {})
    silent = isinstance(properties, dict) and all(
        isinstance(one, bool) for one in properties.values()
    )
    return not silent or bool(schema.keys() & (_BELOW - {"properties"}))
