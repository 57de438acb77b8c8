"""Schemas as rules of our own: what they allow, which keys are which, and how deep they lead."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from quire.core.errors import RequestError
from support.grammars import allowed, allows, backend, compiled


def fits(schema: Any, *texts: str, **asked: Any) -> list[bool]:
    rules = compiled(json=schema, **asked)
    return [allows(rules, text) for text in texts]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"ab": {"type": "integer"}}, "required": ["ab"]},
        {
            "properties": {"ab": {"type": "integer"}},
            "patternProperties": {"^z": {}},
            "type": "object",
            "required": ["ab"],
        },
    ],
)
def test_a_key_has_one_spelling_so_that_none_escapes_its_schema(schema: Any) -> None:
    assert fits(
        schema,
        '{"ab": 1, "x": "a"}',
        '{"ab": 1, "\\u0061b": "a"}',
        '{"ab": 1, "a\\u0062": "a"}',
        '{"ab": 1, "ab": "a"}',
        '{"\\u0061b": 1}',
    ) == [True, False, False, False, False]


def test_keys_with_quotes_slashes_and_lines_are_known_too() -> None:
    for key in ('a"b', "a\\b", "a\nb", "a/b", "\x01", "é", "\U0001f600", "a\x7f"):
        schema = {"type": "object", "properties": {key: {"const": 1}}}
        usual, other = (f"{{{json.dumps(key, ensure_ascii=False)}: {n}}}" for n in (1, 2))
        assert fits(schema, usual, other) == [True, False], key
        escaped = json.dumps("".join(f"\\u{ord(one):04x}" for one in key)).replace("\\\\", "\\")
        if len(escaped) < 30:
            assert fits(schema, f"{{{escaped}: 2}}") == [False], key
    assert fits({}, '{"a\\/b": 1}', '{"a\\tb\\u0001": 1}') == [False, True]


CASES: list[tuple[Any, list[str], list[str]]] = [
    (
        {
            "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
            "type": "object",
            "additionalProperties": False,
        },
        ["{}", '{"a":1}', '{"b":2}', '{"a":1,"c":3}', '{ "a" : 1 , "b":2, "c":3 }'],
        ['{"b":2,"a":1}', '{"a":1,}', '{,"a":1}', '{"a":1 "b":2}', '{"d":1}'],
    ),
    (
        {
            "properties": {"a": {}, "b": {}, "c": {}},
            "required": ["b", "z"],
            "type": "object",
            "additionalProperties": {"type": "null"},
        },
        ['{"b":1,"z":null}', '{"a":1,"b":1,"c":1,"z":null,"y":null}'],
        ['{"b":1}', '{"b":1,"z":1}', '{"a":1,"c":1}', '{"b":1,"z":null,"y":1}'],
    ),
    (
        {
            "type": "array",
            "prefixItems": [{"const": 1}, {"const": 2}],
            "items": {"const": 3},
            "minItems": 1,
            "maxItems": 4,
        },
        ["[1]", "[1,2]", "[1, 2, 3]", "[1,2,3,3]"],
        ["[]", "[2]", "[1,3]", "[1,2,3,3,3]", "[1,]"],
    ),
    (
        {"type": "array", "items": [{"const": 1}, False], "additionalItems": {"const": 3}},
        ["[]", "[1]"],
        ["[1,2]", "[1,3]", "[3]"],
    ),
    ({"type": "array", "items": {"const": 1}, "minItems": 2}, ["[1,1]", "[1,1,1]"], ["[1]", "[]"]),
    ({"type": "array", "items": {"const": 1}, "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    (
        {"minimum": 3, "maxLength": 1, "properties": {"a": False}, "required": ["b"]},
        ["3", '"x"', '{"b": 1}', "[1]", "null", "true"],
        ["2", '"xy"', '{"a": 1, "b": 1}', "{}"],
    ),
    ({"anyOf": [False, {"type": "null"}, {"enum": []}]}, ["null"], ["1"]),
    (
        {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 1}]},
        ["null", '"a"'],
        ["1", '"ab"'],
    ),
    ({"allOf": [{"type": "boolean"}], "description": "words"}, ["true"], ["1"]),
    (
        {"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}}], "type": "object"},
        ['{"a":1}'],
        ["{}", '{"a":2}'],
    ),
    (
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"n": {"$ref": "#/$defs/n"}},
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/n",
        },
        ["{}", '{"n":{"n":{}}}'],
        ['{"n":1}', '{"m":{}}'],
    ),
    ({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[],[[]]]"], ["[1]"]),
    (
        {
            "properties": {"a": {"const": 1}, "b": {"$ref": "#/properties/a"}},
            "type": "object",
            "additionalProperties": False,
        },
        ['{"a":1,"b":1}'],
        ['{"b":2}'],
    ),
    (
        {"definitions": {"a/b": {"const": 1}}, "$ref": "#/definitions/a~1b"},
        ["1"],
        ["2"],
    ),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, ["5"], ["4", '"x"']),
    (
        {"const": {"b": [1, {"a": "x"}], "a": None}},
        ['{"b":[1,{"a":"x"}],"a":null}'],
        ['{"a":null}'],
    ),
    (
        {"enum": ["a/b", "a\tb", "é", "\ud83d\ude00", "\x7f"]},
        ['"a/b"', '"a\\tb"', '"é"', '"😀"', '"\x7f"'],
        ['"a\\/b"', '"\\u00e9"'],
    ),
    ({"type": "string", "pattern": "^a$|\\$$", "format": "nobody"}, ['"a"', '"x$"'], ['"b"']),
    ({"type": "string", "description": "a", "title": "b", "default": 1e3}, ['"a"'], ["1"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_what_schemas_allow(schema: Any, good: list[str], bad: list[str]) -> None:
    rules = compiled(json=json.loads(json.dumps(schema)))
    assert [text for text in good if not allows(rules, text)] == []
    assert [text for text in bad if allows(rules, text)] == []


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_properties_that_need_not_be_there_come_in_their_order(count: int) -> None:
    properties = {f"p{i}": {"const": i} for i in range(count)}
    schema = {"type": "object", "properties": properties, "additionalProperties": {"type": "null"}}
    rules, chance = compiled(json=schema), random.Random(count)
    for _ in range(5):
        chosen = [i for i in range(count) if chance.random() < 0.4]
        pairs = [f'"p{i}":{i}' for i in chosen] + ['"q":null'] * chance.randint(0, 2)
        assert allows(rules, "{" + ",".join(pairs) + "}")
        if len(chosen) > 1:
            assert not allows(rules, "{" + ",".join(reversed(pairs)) + "}")


def test_white_space_is_where_it_may_be_and_bounded() -> None:
    schema = {"properties": {"a": {"type": "array"}}, "type": "object", "required": ["a"]}
    spaced, wide = '{ "a" : [ 1 , "x" ] }', '{"a":%s[]}' % (" " * 17)
    assert fits(schema, spaced, wide, ' {"a":[]}') == [True, False, False]
    assert fits(schema, spaced, '{"a":[1,"x"]}', disable_any_whitespace=True) == [False, True]
    assert fits(schema, '{"a":/[]}', '{"a": []}', whitespace_pattern="/") == [True, False]


def test_texts_drawn_from_a_schema_follow_it() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"enum": [2**60 + 1, 2**61 + 1]},
            "at": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.125},
            "tags": {
                "type": "array",
                "items": {"type": ["string", "null"], "maxLength": 3},
                "maxItems": 2,
            },
        },
        "required": ["id", "at", "share"],
        "additionalProperties": False,
    }
    rules = compiled(json=schema, disable_any_whitespace=True)
    for seed in range(8):
        output, chance = list[int](), random.Random(seed)
        while 0 not in (found := allowed(rules, output, 4_096)):
            output.append(chance.choice(found))
        jsonschema.validate(json.loads(backend().decode(output)), schema)


def links(link: Any, count: int) -> dict[str, Any]:
    def to(i: int) -> Any:
        return json.loads(json.dumps(link).replace("NEXT", f"#/$defs/d{i}"))

    definitions = {f"d{i}": to(i + 1) for i in range(count)} | {f"d{count}": {"type": "array"}}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


LINKS: list[Any] = [
    {"$ref": "NEXT"},
    {"type": "array", "items": {"$ref": "NEXT"}},
    {"allOf": [{"$ref": "NEXT"}, {"minItems": 1}]},
    {"anyOf": [{"type": "null"}, {"$ref": "NEXT"}]},
    {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "NEXT"}}]},
    {"properties": {"a": {"$ref": "NEXT"}}},
    {"additionalProperties": {"$ref": "NEXT"}},
    {"patternProperties": {"^a": {"$ref": "NEXT"}}},
    {"prefixItems": [{"$ref": "NEXT"}]},
    {"$ref": "NEXT", "minItems": 1},
]


@pytest.mark.parametrize("link", LINKS)
def test_the_depth_of_a_schema_is_counted_through_its_references(link: Any) -> None:
    """Of the first kind 3,000 ended the process, of the second 1,101."""
    for count in (1_101, 2_000 if "oneOf" in link else 3_000):
        for asked in ({"json": links(link, count)}, tool(links(link, count))):
            with pytest.raises(RequestError, match=r"structured_outputs.*1,000 levels"):
                compiled(**asked)
    compiled(json=links(link, 100))


def tool(schema: Any) -> dict[str, str]:
    return {"grammar": f'start: "call" %json {json.dumps(schema)}'}


def test_references_by_other_ways_are_counted_too() -> None:
    chain: dict[str, Any] = {
        f"d{i}": {"items": {"$ref": f"#/x-more/d{i + 1}"}} for i in range(1_500)
    }
    anchors = {f"d{i}": {"$anchor": f"a{i}", "items": {"$ref": f"#a{i + 1}"}} for i in range(1_500)}
    for schema in (
        {"$ref": "#/x-more/d0", "x-more": {**chain, "d1500": {}}},
        {"$ref": "#a0", "$defs": {**anchors, "d1500": {"$anchor": "a1500"}}},
    ):
        with pytest.raises(RequestError, match="1,000 levels"):
            compiled(json=schema)


def test_schemas_that_refer_to_themselves_are_no_deeper_for_that() -> None:
    count = 60
    every = {
        f"d{i}": {
            "type": "object",
            "properties": {f"p{j}": {"$ref": f"#/$defs/d{j}"} for j in range(i % 7, count, 7)},
            "additionalProperties": False,
        }
        for i in range(count)
    }
    rules = compiled(json={"$ref": "#/$defs/d0", "$defs": every})
    assert allows(rules, '{"p7": {"p0": {"p14": {}}}}') and not allows(rules, '{"p1": {}}')
    with pytest.raises(RequestError, match="no text"):
        compiled(json={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})


def test_rules_of_grammars_lead_no_deeper_either() -> None:
    chain = "\n".join(f'a{i}: "x" a{i + 1}' for i in range(6_000))
    terminals = "\n".join(f'A{i}: "x" A{i + 1}' for i in range(6_000))
    gbnf = "\n".join(f'a{i} ::= "x" a{i + 1}' for i in range(900))
    for grammar in (f'start: a0\n{chain}\na6000: "y"', f'start: A0\n{terminals}\nA6000: "y"'):
        with pytest.raises(RequestError, match=r"rules of a grammar .* 1,000"):
            compiled(grammar=grammar)
    assert allows(compiled(grammar=f'root ::= a0\n{gbnf}\na900 ::= "y"'), "x" * 900 + "y")
    assert allows(compiled(grammar='start: "(" start? ")" | item*\nitem: start'), "(())")


def test_what_stands_in_a_grammar_s_texts_and_comments_is_no_schema() -> None:
    text = '%json {"a": <b>} /x/ // #'
    grammar = f'start: {json.dumps(text)} /%json \\{{<a>\\/"/ # "%json {{\n // %json {{'
    assert allows(compiled(grammar=grammar), text + '%json {<a>/"')
    with pytest.raises(RequestError, match="%json"):
        compiled(grammar='start: %json {"a": ')


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": {"a": 2**60 + 1}},
        {"minimum": [2**60 + 1]},
        {"enum": 2**60 + 1},
        {"const": 1, "type": 5},
        {"const": 1, "type": ["x"]},
        {"type": "array", "prefixItems": 2**60 + 1},
        {"properties": [1]},
        {"required": 3},
        {"$ref": 5},
        {"x-guidance": 5},
    ],
)
def test_what_is_no_schema_is_refused_and_nothing_breaks(schema: Any) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        compiled(grammar=f"start: %json {json.dumps(schema)}")


def test_a_bound_may_be_a_negative_zero() -> None:
    assert fits('{"type": "number", "maximum": -0.0}', "0", "-1.5", "0.5") == [True, True, False]
    assert fits('{"type": "integer", "minimum": -0.0}', "0", "-1", "5") == [True, False, True]


@pytest.mark.parametrize(
    "idle",
    [
        {"format": "uri-reference"},
        {"format": "int64"},
        {"uniqueItems": False},
        {"propertyNames": {"type": "string"}},
        {"propertyNames": True},
    ],
)
def test_words_that_ask_nothing_are_no_matter_whoever_says_them(idle: Any) -> None:
    schema = {"properties": {"format": {**idle, "type": ["string", "object"]}}, **idle}
    closed = {**schema, "type": "object", "additionalProperties": {"type": "null"}}
    format_ = {"type": "json_schema", "json_schema": closed}
    structures = [{"begin": "<a>", "schema": closed, "end": "</a>"}]
    for asked, text in (
        ({"json": closed}, "%s"),
        (tool(closed), "call%s"),
        ({"structural_tag": {"format": format_}}, "%s"),
        ({"structural_tag": {"structures": structures, "triggers": ["<a"]}}, "<a>%s</a>"),
    ):
        rules = compiled(**asked)
        for value, good in (('"x"', True), ("{}", True), ("7", False)):
            assert allows(rules, text % f'{{"format":{value},"uniqueItems":null}}') is good
    with pytest.raises(RequestError, match="structured_outputs"):
        compiled(json={"type": "array", "uniqueItems": True})
    with pytest.raises(RequestError, match="structured_outputs"):
        compiled(json={"type": "object", "propertyNames": {"pattern": "^a"}})
