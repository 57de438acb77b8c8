"""The schemas within a JSON schema, and how deep they lead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from quire.core.errors import RequestError

Json = dict[str, Any]

BY_NAME = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
VALUES = {"const", "enum", "default", "example", "examples", "x-guidance"}  # which are no schemas
_MOST_LEVELS = 64  # of a schema
_MOST_LINKED = 1_000  # levels, counted through what is referred to: each takes llguidance's stack
_IDENTIFYING = {"$id", "id", "$anchor", "$dynamicAnchor"}
_FIELD = "structured_outputs"


def edited(schema: Any, edits: Sequence[Callable[[Json], Json]]) -> Any:
    """A copy of a schema, with ``edits`` applied to it and to all schemas in it."""
    if isinstance(schema, list):
        return [edited(item, edits) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found: Json = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, dict):
            found[key] = {name: edited(item, edits) for name, item in value.items()}
        else:
            found[key] = value if key in VALUES else edited(value, edits)
    for edit in edits:
        found = edit(found)
    return found


def subschemas(schema: Any) -> Iterator[tuple[Json, int]]:
    """A schema and all schemas in it that are objects, each with its level."""
    todo = [(schema, 1)]
    while todo:
        one, level = todo.pop()
        if isinstance(one, list):
            todo += [(item, level) for item in one]
        elif isinstance(one, dict):
            yield one, level
            for key, value in one.items():
                if key in BY_NAME and isinstance(value, dict):
                    todo += [(item, level + 1) for item in value.values()]
                elif key not in VALUES:
                    todo.append((value, level + 1))


def check_depth(schema: Any) -> None:
    """RequestError for a schema that leads deeper than may be, with what it refers to.

    A schema may refer to itself: that is no depth.
    """
    if deep(schema, _MOST_LEVELS):
        raise RequestError(f"{_FIELD}: a schema may be at most {_MOST_LEVELS} levels deep", _FIELD)
    identified = [one for one, _ in subschemas(schema) if _IDENTIFYING & one.keys()]
    links: dict[str, set[str]] = {}
    levels = {"": sum(map(_levels, identified))}  # any reference that is no pointer may mean them
    links[""] = {name for one in identified for name in _references(one)}
    todo, known = [("#", schema)], {"#"}
    while todo:
        name, one = todo.pop()
        levels[name] = _levels(one)
        links[name] = {
            other if pointed(schema, other) is not None else "" for other in _references(one)
        }
        new = sorted(links[name] - known - {""})
        known.update(new)
        todo += [(other, pointed(schema, other)) for other in new]
    if longest_chain(links, levels) > _MOST_LINKED:
        raise RequestError(
            f"{_FIELD}: a schema may lead through at most {_MOST_LINKED:,} levels, those that it "
            "refers to included",
            _FIELD,
        )


def pointed(schema: Any, reference: object) -> Any:
    """The schema that a reference points to; None where it points to none within ``schema``."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = schema
    for token in reference.split("/")[1:]:
        name = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isascii() and name.isdigit():
            found = dict(enumerate(found)).get(int(name))
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, (dict, bool)) else None


def _references(schema: Any) -> set[str]:
    each = (one["$ref"] for one, _ in subschemas(schema) if "$ref" in one)
    return {one for one in each if isinstance(one, str)}


def _levels(schema: Any) -> int:
    return max((level for _, level in subschemas(schema)), default=1)


def deep(value: object, levels: int) -> bool:
    """Whether JSON is nested more than ``levels`` deep."""
    level = [value]
    for _ in range(levels):
        inside: list[object] = []
        for one in level:
            if isinstance(one, Mapping):
                inside += one.values()
            elif isinstance(one, (list, tuple)):
                inside += one
        level = inside
        if not level:
            return False
    return True


def longest_chain(links: Mapping[str, Iterable[str]], lengths: Mapping[str, int]) -> int:
    """The most that ``lengths`` add up to along a chain that enters nothing twice.

    At most: of things that lead to each other in a circle, all count. Links to unknown things lead
    nowhere.
    """
    totals: dict[str, int] = {}  # of chains from a thing on, once they are known
    found, lowest = dict[str, int](), dict[str, int]()
    path: list[str] = []  # things found and not yet in a circle that is complete
    for root in links:
        if root in found:
            continue
        todo = [(root, iter(links[root]))]
        found[root] = lowest[root] = len(found)
        path.append(root)
        while todo:
            here, others = todo[-1]
            for other in others:
                if other not in links or other in totals:
                    continue
                if other in found:
                    lowest[here] = min(lowest[here], found[other])
                    continue
                found[other] = lowest[other] = len(found)
                path.append(other)
                todo.append((other, iter(links[other])))
                break
            else:
                todo.pop()
                if todo:
                    lowest[todo[-1][0]] = min(lowest[todo[-1][0]], lowest[here])
                if lowest[here] == found[here]:
                    circle = path[path.index(here) :]
                    del path[-len(circle) :]
                    _complete(circle, links, lengths, totals)
    return max(totals.values(), default=0)


def _complete(
    circle: list[str],
    links: Mapping[str, Iterable[str]],
    lengths: Mapping[str, int],
    totals: dict[str, int],
) -> None:
    beyond = max((totals.get(one, 0) for name in circle for one in links[name]), default=0)
    total = sum(lengths[name] for name in circle) + beyond
    totals.update(dict.fromkeys(circle, total))
