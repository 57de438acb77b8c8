"""Numbers of schemas: exact, however large, and never endless."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.capabilities.grammar.numbers import MOST_DIGITS, Bounds, integers, literal_of, numbers
from quire.core.errors import RequestError
from support.grammars import allows, compiled

INT64 = (-(2**63), 2**63 - 1)
DOUBLE = sys.float_info.max


def fits(schema: Any, *texts: str) -> list[bool]:
    rules = compiled(json=schema)
    return [allows(rules, text) for text in texts]


@pytest.mark.parametrize(
    "value", [1234567890123456789, 2**53 + 1, -(2**63), 2**64 - 1, 10**18, 10**30 + 7, -(2**200)]
)
def test_integers_that_a_schema_names_are_written_as_they_are(value: int) -> None:
    others = [
        str(value + 1),
        str(value - 1),
        str(int(float(value)) if float(value) != value else 0),
    ]
    for schema in (
        {"enum": [value]},
        {"const": value},
        {"type": "integer", "enum": [5, value]},
        {"type": ["integer", "null"], "const": value},
        json.dumps({"const": value}),
    ):
        assert fits(schema, str(value), *others) == [True, False, False, False]
    rules = compiled(
        json={"properties": {"id": {"enum": [value]}, "of": {"const": {"a": [value]}}}}
    )
    assert allows(rules, f'{{"id": {value}, "of": {{"a": [{value}]}}}}')
    assert not allows(rules, f'{{"id": {value + 1}}}')


@pytest.mark.parametrize(
    "least, most",
    [
        INT64,
        (0, 2**64 - 1),
        (10**18, None),
        (None, -(10**18)),
        (2**53 + 1, 2**53 + 3),
        (10**45, None),
    ],
)
def test_bounds_of_integers_are_exact(least: int | None, most: int | None) -> None:
    said = {} if least is None else {"minimum": least}
    said |= {} if most is None else {"maximum": most}
    rules = compiled(json={"type": "integer", **said})
    outer = compiled(
        json={"type": "integer", **{f"exclusive{k.title()}": v for k, v in said.items()}}
    )
    for end, step in ((least, -1), (most, 1)):
        if end is not None:
            assert allows(rules, str(end)) and not allows(rules, str(end + step))
            assert allows(outer, str(end - step)) and not allows(outer, str(end))


def test_bounds_of_draft_4_and_those_that_bind_less_than_others() -> None:
    big = 10**18
    draft_4 = {"type": "integer", "minimum": big, "exclusiveMinimum": True}
    assert fits(draft_4, str(big), str(big + 1)) == [False, True]
    both = {"type": "integer", "minimum": big, "exclusiveMinimum": big - 5}
    assert fits(both, str(big - 1), str(big)) == [False, True]


@pytest.mark.parametrize("end", [DOUBLE, int(DOUBLE)])
def test_all_doubles_fit_between_the_largest_ones(end: float | int) -> None:
    schema = {"type": "number", "minimum": -end, "maximum": end}
    values = (DOUBLE, -DOUBLE, 5e-324, 1e22, -0.1, 2**63, 0, 1e-7, 12.5)
    assert all(fits(schema, *map(json.dumps, values)))
    assert fits(schema, "1.7976931348623158e308", "-1e309", "1e308") == [False, False, True]


def test_numbers_without_bounds_take_all_that_programs_write_and_end() -> None:
    written = [*map(json.dumps, (DOUBLE, 5e-324, 1e22, -1e-7, 2**64, *INT64)), "1E2", "0.10"]
    for schema in (True, {}, {"type": "number"}, {"items": {}}, {"type": ["number", "null"]}):
        assert all(fits(schema, *written))
        endless = "1" * (MOST_DIGITS + 1)
        assert not any(fits(schema, endless, "0." + endless, "1e1111", "-" + endless))
    assert fits({}, '"' + "1" * 99 + '"') == [True]  # a text is no number
    assert not any(fits({"type": "integer"}, "1" * (MOST_DIGITS + 1), "1.0"))
    assert not any(fits({"minimum": 0, "type": "number"}, "9" * (MOST_DIGITS + 1), "0." + "1" * 99))
    nested = {"type": "object", "additionalProperties": {"type": "array"}}
    assert fits(nested, f'{{"a": [{endless}]}}', '{"a": [[12], {"b": 1}]}') == [False, True]


@pytest.mark.parametrize(
    "spelled, right, wrong",
    [
        ("1E2", "100", "1E2x"),
        ("-0.0", "0", "1"),
        ("-0", "0", "-1"),
        ("0.1", "0.1", "0.10000000000000001"),
        ("0.1234567890123456789", "0.1234567890123456789", "0.12345678901234568"),
        ("12345678901234567890.5", "12345678901234567890.5", "12345678901234567000.5"),
        ("1.50", "1.5", "1.51"),
        ("1e400", "1e400", "1e401"),
        ("5e-324", "5e-324", "0"),
    ],
)
def test_a_number_may_be_spelled_in_many_ways(spelled: str, right: str, wrong: str) -> None:
    assert fits(f'{{"const": {spelled}}}', right, wrong) == [True, False]
    assert fits(f'{{"enum": ["x", {spelled}]}}', right, wrong, '"x"') == [True, False, True]


def test_values_of_texts_stay_texts() -> None:
    ids = {"type": "string", "enum": ["1234567890123456789", "1e400", 1234567890123456789]}
    assert fits(ids, '"1234567890123456789"', "1234567890123456789", '"1e400"') == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "schema, words",
    [
        ({"type": "integer", "multipleOf": 2**53 + 1}, "multipleOf"),
        ({"type": "integer", "multipleOf": 3, "maximum": 2**53 + 1}, "maximum"),
        ({"type": "number", "multipleOf": 0.07}, "multipleOf"),
        ({"patternProperties": {"^a": {"const": 2**53 + 1}}}, "const"),
        ({"allOf": [{"minimum": 2**60 + 1}, {"type": "integer"}]}, "minimum"),
        ({"type": "integer", "minimum": 10**400}, "minimum"),
        ('{"maximum": 1e999999999}', "maximum"),
        ({"type": "integer", "minimum": 2**60 + 1, "maximum": 2**60}, "no value"),
        ({"const": float("inf")}, "finite"),
    ],
)
def test_numbers_that_cannot_be_kept_to_are_refused_by_name(schema: Any, words: str) -> None:
    with pytest.raises(RequestError, match=f"structured_outputs.*{words}"):
        compiled(json=schema)


def test_what_bounds_and_steps_say_together() -> None:
    said = {"type": "integer", "multipleOf": 7, "minimum": 20, "maximum": 30}
    assert fits(said, "21", "28", "22", "14") == [True, True, False, False]
    assert fits({"type": "number", "multipleOf": 0.01}, "1.25", "1.255") == [True, False]
    assert fits({"type": "integer", "multipleOf": 5}, str(5 * 10**17), "1" * 41) == [True, False]


VALUES = st.one_of(
    st.integers(-(10**20), 10**20).map(Decimal),
    st.decimals(-(10**9), 10**9, places=4),
    st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Decimal),
)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES, st.booleans(), st.booleans(), st.lists(VALUES, min_size=1, max_size=6))
def test_a_terminal_allows_what_lies_within_bounds(
    one: Decimal, other: Decimal, above: bool, below: bool, values: list[Decimal]
) -> None:
    least, most = sorted((one, other))
    bounds = Bounds(least, above, most, below)
    for expression, whole in ((numbers(bounds), False), (integers(bounds), True)):
        rules = expression and compiled(grammar=f"start: T\nT: {expression}")
        for value in (*values, least, most):
            text = literal_of(value)
            digits = text.strip("-").partition("e")[0].partition(".")
            if max(map(len, digits)) > MOST_DIGITS or (whole and not text.strip("-").isdigit()):
                continue
            if "e" in text and max(abs(least), abs(most)) < 10**15:
                continue  # near zero, and where bounds are near, numbers go without exponents
            inside = (least < value or (least == value and not above)) and (
                value < most or (value == most and not below)
            )
            assert bool(rules and allows(rules, text)) == inside, (text, bounds)
