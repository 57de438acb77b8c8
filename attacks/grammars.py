"""Structured text that explodes when it is compiled, or with every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attacks.attack import REFUSED, SERVED, TOO_LARGE, Attack, completion, posting
from attacks.crowd import crowd
from attacks.doors import asking_every_door
from attacks.target import Target

_LONG = 200  # tokens of an output
_MB = 10**6


def structured(target: Target, **asked: object) -> bytes:
    return completion(target, max_tokens=_LONG, temperature=2.0, structured_outputs=asked)


def exploding_schemas(target: Target) -> list[bytes]:
    """Many properties that may be left out; products of choices; choices of objects."""
    optional: dict[str, Any] = {"properties": {f"{number:x}": {} for number in range(6_000)}}
    choices = [
        {"anyOf": [{"properties": {f"p{i}{j}": {"type": "string"}}} for j in range(5)]}
        for i in range(9)
    ]
    objects = [{"type": "object", "properties": {f"{number:x}": {}}} for number in range(4_000)]
    schemas = ({"type": "object", **optional}, {"allOf": choices}, {"anyOf": objects})
    return [structured(target, json=schema) for schema in schemas]


def deep_schemas(target: Target) -> list[bytes]:
    """That go down in themselves, as far as a body may, or for ever."""
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        nested = {"type": "array", "items": nested}
    recursive = {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
                  "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "$ref": "#/$defs/a",
    }  # fmt: skip
    return [structured(target, json=schema) for schema in (nested, recursive, {"$ref": "#"})]


def chains(target: Target) -> None:
    """Definitions of which each refers to the next, at every door that takes a schema."""

    def chain(length: int, link: Callable[[Any], Any]) -> Any:
        links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
        last = {f"d{length}": {"type": "null"}}
        return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**links, **last}}

    schemas = (
        chain(3_000, lambda one: one),
        chain(1_101, lambda one: {"type": "array", "items": one}),
        chain(1_101, lambda one: {"allOf": [one]}),
        chain(990, lambda one: {"type": "array", "items": one}),
    )
    crowd(target, asking_every_door(target, schemas), 2, 0.2)


def contradictions(target: Target) -> list[bytes]:
    schemas: list[object] = [
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "string", "pattern": "a", "enum": ["b"]},
        {"type": "integer", "multipleOf": 982451653, "minimum": 3, "maximum": 10**300},
    ]
    return [structured(target, json=schema) for schema in schemas]


def large_schema(target: Target) -> bytes:
    return structured(target, json={"description": "x" * (10 * _MB)})


def backtracking(target: Target) -> list[bytes]:
    """Expressions that others' engines take for ever on."""
    expressions = ("(a?){3000}a{3000}", "(([a-z]+)+)+x", "(.*a.{500}){50}", "(" * 5_000,
                   "|".join(f"a{i}.*b{i}" for i in range(2_000)))  # fmt: skip
    return [structured(target, regex=expression) for expression in expressions]


def ambiguous_grammars(target: Target) -> list[bytes]:
    """Every token may be read in more and more ways."""
    grammars = ('start: start start | "a" | "aa" | ""', "start: x x x x\nx: x x | /[a-z ]*/",
                "root ::= " + "(" * 8_000, 'start: "a" | nowhere')  # fmt: skip
    return [structured(target, grammar=grammar) for grammar in grammars]


def ambiguous(*lines: str, n: int) -> Callable[[Target], bytes]:
    """Of n outputs, every token may be read in more and more ways."""
    return lambda target: completion(
        target, n=n, max_tokens=_LONG, structured_outputs={"grammar": "\n".join(lines)}
    )


_THREE = ("start: e", "e: e e e | e e | /[a-z ]/")
_FOUR = ("start: e", "e: e e e e | e e | /(?s:.)/")
_GBNF = ("root ::= e", "e ::= e e e | e e | [a-z ]")
GRAMMARS = (
    Attack("schemas that explode", posting(exploding_schemas), SERVED | REFUSED),
    Attack("schemas within themselves", posting(deep_schemas), SERVED | REFUSED),
    Attack("chains of references", chains, SERVED | REFUSED),
    Attack("schemas that contradict", posting(contradictions), SERVED | REFUSED),
    Attack("a schema of 10 MB", posting(large_schema), TOO_LARGE),
    Attack("expressions that backtrack", posting(backtracking), SERVED | REFUSED),
    Attack("grammars that explode", posting(ambiguous_grammars), SERVED | REFUSED),
    Attack("ambiguous grammar, n=8", posting(ambiguous(*_THREE, n=8)), SERVED),
    Attack("ambiguous grammar, n=64", posting(ambiguous(*_THREE, n=64)), SERVED),
    Attack("more ambiguous, n=8", posting(ambiguous(*_FOUR, n=8)), SERVED),
    Attack("ambiguous GBNF, n=8", posting(ambiguous(*_GBNF, n=8)), SERVED),
)
