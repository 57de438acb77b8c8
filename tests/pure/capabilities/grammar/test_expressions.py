"""Expressions in schemas: what is written by them is JSON, and fits them for all who read them."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from quire.capabilities.grammar import Rules
from quire.core.errors import RequestError
from quire.text.dialect.expressions import pieces_of
from support.grammars import allows, backend, compiled

SIZE = backend().get_vocab_size()
TOKENS = [backend().decode([token]) for token in range(SIZE)]
ODD = np.array([bool(re.search(r"[\x00-\x1f\"\\\x7f-\U0010ffff]", text)) for text in TOKENS])
ENDS = np.array(['"' in text for text in TOKENS])


def written(rules: Rules, seed: int, most: int = 60) -> str | None:
    """What somebody writes who likes odd characters; None if it does not come to an end."""
    assert rules.text is not None
    matcher, chance, tokens = rules.text.deep_copy(), random.Random(seed), list[int]()
    while not matcher.is_accepting():
        if len(tokens) == most:
            return None
        free = np.unpackbits(
            np.frombuffer(matcher.compute_bitmask(), np.uint8), count=SIZE, bitorder="little"
        ).astype(bool)
        free[0] = False
        for liked, how in ((ENDS, 0.1 if len(tokens) < 20 else 0.6), (ODD, 0.6)):
            if (free & liked).any() and chance.random() < how:
                free &= liked
        tokens.append(int(chance.choice(free.nonzero()[0])))
        assert matcher.consume_token(tokens[-1])
    return str(backend().decode(tokens))


PATTERNS = [
    *(r'^[^"]{1,4}$', r"^[^\\]+$", r'^[^"\\]*$', r'[^"]', r'^(?:[^"\\]|\\.)*$', r'^[^a"]b?[^"]$'),
    *(r"^[\x00-\x1f]*$", r"^[\x01-\x20]+$", r'^(?:[\x00-\x0f]|[\x10-\x1f])+$', r"^[\x00-!]+$"),
    *(r"^\x00?a$", r"^[^\n]+$", r'^[^"\n]+$', r"^.$", r"^.{2,3}$", r"^\S+$", r"^\s+$", r"^[^\s]+$"),
    *(r"^[^\S]+$", r"^[\s\S]{2}$", r"^[\w\W]$", r"^[^\w]$", r"^\W\D$", r"^[\W_]+$", r"^[\b\t]+$"),
    *(r"^[a&&b]+$", r"^[\[\]]+$", r"^[^[\]]+$", r"^[+--]+$", r"^[\w.%+-]+$", r"^[a~~b]$", r"^{.}$"),
    *(r"^\u0041\cA?\0?$", r"^\ud83d\ude00.$", r"^\/\"\-\_\<$", r"^a|b$", r"^(a|^b)c", r"^a$|^$"),
    *(r"(?i)^[k-s]+$", r"(?i)^k[^s]$", r"(?s)^.$", r"^(?s:.).$", r"^(?P<x>a)(?<y>b)(?:c)$"),
    *(r"^a+?b*?c??$", r"^[^/]+(/[^/]+)*$", r"^\p{L}\P{L}$", r'^\P{P}+$', r"^\A?b\Z$"[:1] + "a"),
]  # fmt: skip


def standard(pattern: str) -> re.Pattern[str]:
    """The same for Python, which has JavaScript's classes by other names."""
    pattern = re.sub(r"\\c(.)", lambda found: f"\\x{ord(found[1]) % 32:02x}", pattern)
    pattern = pattern.replace(r"\ud83d\ude00", "\U0001f600").replace("(?<y>", "(?P<y>")
    pattern = pattern.replace(r"\p{L}", r"[^\W\d_]").replace(r"\P{L}", r"[\W\d_]")
    pattern = pattern.replace(r"\P{P}", r"""[^!-#%-*,-/:;?@\[-\]_{}]""").replace("[^[", r"[^\[")
    pattern = pattern.replace(r"^\W\D$", r"^[^0-9A-Za-z_][^0-9]$").replace("a&&b", r"a&\&b")
    pattern = pattern.replace("+--", r"+-\-").replace("a~~b", r"a~\~b").replace(r"\_\<", "_<")
    for name in ("[^\\w]", "[\\W_]"):
        pattern = pattern.replace(name, {"[^\\w]": "[^0-9A-Za-z_]", "[\\W_]": "[^0-9A-Za-z]"}[name])
    return re.compile(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_written_is_json_and_fits(pattern: str) -> None:
    rules, fits = compiled(json={"type": "string", "pattern": pattern}), standard(pattern)
    whole = [text for seed in range(12) if (text := written(rules, seed)) is not None]
    for text in whole:
        value = json.loads(text, strict=True)
        assert isinstance(value, str) and fits.search(value), text
    assert whole


REFUSED = {
    r"(?=a)": "look-around",
    r"(?<!a)b": "look-around",
    r"\ba": "differ",
    r"(a)\1": "differ",
    "[[:alpha:]]": "name",
    "[]a]": "begins with",
    "[^]": "begins with",
    r"\a": "differ",
    "a{,2}": "how many",
    "a{3,2}": "3 to 2",
    "a**": "repeated",
    "a++": "repeated",
    "*": "repeat",
    "(a": "not end",
    "a)": "not begun",
    "[a": "not end",
    "a\\": "differ",
    r"\ud800": "no char",
    "[z-a]": "before",
    r"[a-\d]": "ends with a class",
    "a(?i)b": "differ",
    "(?x)a": "differ",
    r"\u{110000}": "no char",
    "(?>a)": "differ",
    r"\pL": "differ",
    r"[\12]": "differ",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_read_in_different_ways_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[pattern]):
        pieces_of(pattern)
    with pytest.raises(RequestError, match="the expression") as refused:
        compiled(json={"type": "string", "pattern": pattern})
    assert refused.value.field == "structured_outputs"


def test_an_anchor_in_the_middle_is_refused_in_words_of_our_own() -> None:
    with pytest.raises(RequestError, match="at its ends only"):
        compiled(json={"type": "string", "pattern": "a^b"})


KEYS: list[tuple[Any, list[str], list[str]]] = [
    (
        {'^[^"]$': {"type": "integer"}},
        ['{"a":1}', '{"aa":"x"}', '{"\\"":"x"}'],
        ['{"a":"x"}', '{"\\\\":"x"}'],
    ),
    ({"^.$": {"type": "integer"}}, ['{"a":1}', '{"\\n":"x"}'], ['{"a":"x"}', '{"\\r":"x"}']),
    ({"^x": {"type": "integer"}}, ['{"xa":1}', '{"a":"x"}'], ['{"xa":"x"}']),
]


@pytest.mark.parametrize(("by_key", "good", "bad"), KEYS)
def test_a_key_that_fits_an_expression_cannot_be_another(
    by_key: Any, good: list[str], bad: list[str]
) -> None:
    schema = {"type": "object", "patternProperties": by_key, "additionalProperties": True}
    rules = compiled(json=schema)
    assert [allows(rules, text) for text in good + bad] == [True] * len(good) + [False] * len(bad)


def test_keys_by_which_readers_differ_are_refused_where_it_matters() -> None:
    for more in ({"additionalProperties": {"type": "null"}}, {"properties": {"a\rb": {}}}):
        by_key = {"^.*$": {"type": "integer"}}
        with pytest.raises(RequestError, match="patternProperties cannot be kept to"):
            compiled(json={"type": "object", "patternProperties": by_key, **more})
    twice = {"a/b": {}, r"a\/b": {}}
    with pytest.raises(RequestError, match="one expression twice"):
        compiled(json={"type": "object", "patternProperties": twice})
