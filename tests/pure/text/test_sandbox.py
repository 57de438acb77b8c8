"""Chat templates that nobody has read: what they may take, and what they must be able to do."""

from __future__ import annotations

import time

import pytest

from quire.core.errors import RequestError
from quire.text import sandbox
from quire.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]
ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for a in range(99999) %}{% set x = range(99999) | list | length %}{% endfor %}",
    "{% set x = range(99999) | list %}{% for a in x %}{{ '' if -1 in x }}{% endfor %}",
    "{% for a in range(9) recursive %}{% if loop.depth < 12 %}{{ loop(range(9)) }}{% endif %}"
    "{% endfor %}",
]
LARGE = [
    "{{ ('x' * 10 ** 9) | length }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ 2 ** (10 ** 9) }}",
    "{{ 'x' | center(10 ** 9) | length }}",
    "{{ 'x'.ljust(10 ** 9) | length }}",
    "{{ ('%1000000000d' % 1) | length }}",
    "{{ '{:>1000000000}'.format(1) | length }}",
    "{{ (('x' * 99999) | replace('x', 'y' * 9999)) | length }}",
    "{{ ('x' * 99999).replace('', 'y' * 9999) | length }}",
    "{{ (['x' * 9999] * 99999) | join | length }}",
    "{{ ''.join(['x' * 9999] * 99999) | length }}",
    "{{ ['x' * 9999] * 99999 }}",
    "{{ (['x' * 9999] * 99999) | string | length }}",
    "{{ ((['x' * 9999] * 99999) ~ '') | length }}",
    *(
        "{% set ns = namespace(x='x' * 999) %}{% for i in range(40) %}" + double + "{% endfor %}"
        for double in (
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
            "{% set ns.x = '{0}{0}'.format(ns.x) %}",
            "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
            "{% set ns.x = ns.x | replace('x', 'xx') %}",
        )
    ),
    "{% set x = 'x' * 9999999 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(9999) %}{% set ns.l = ns.l + [x[i:]] %}{% endfor %}",
]

TWICE = (  # what is small in memory and without end for who looks into it
    "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}"
)
PAIRS = TWICE.replace("[a.x, a.x]", "(a.x, a.x)").replace("[1]", "(1,)")
LONG = "{% set s = 'a' * 2 ** 21 %}"
MANY = "{% set n = 10 ** 9 %}"
COSTLY = [
    # Filters.
    MANY + "{% for x in [1] | slice(n) %}{% endfor %}",
    MANY + "{% for x in [1] | slice(slices=n) %}{% endfor %}",
    MANY + "{{ [1] | slice(n, 0) | list | length }}",
    MANY + "{{ [1] | batch(n, 0) | list | length }}",
    MANY + "{{ [1] | batch(linecount=n, fill_with='') | first | length }}",
    "{% for a in range(999) %}{% set x = [1] | batch(99999, 0) | list %}{% endfor %}",
    LONG + "{{ s | wordwrap(1) | length }}",
    LONG + "{{ s | wordwrap(width=1, wrapstring=s) | length }}",
    "{{ ('a ' * 9999) | wordwrap(1, true, 'x' * 99999) | length }}",
    LONG + "{{ range(99999) | join(s) | length }}",
    LONG + "{{ s | join(s) | length }}",
    LONG + "{{ ([s, s, s] * 99) | join(d=s) | length }}",
    LONG + "{{ {'a': 1, 'b': 2} | map('center', 10 ** 9) | list | length }}",
    LONG + "{{ s | replace('', new=s) | length }}",
    MANY + "{{ 5 | round(-n) }}",
    MANY + "{{ 5 | round(n, 'floor') }}",
    MANY + "{{ 5 | round(precision=n, method='ceil') }}",
    "{% set x = [range(999) | list] * 9999 %}{{ x | sum(start=[]) | length }}",
    "{{ ('f' * 2 ** 20) | int(0, 16) // 3 }}",
    "{{ ('f' * 2 ** 20) | int(base=16) is divisibleby 3 }}",
    MANY + "{{ '%*d' | format(n, 1) | length }}",
    MANY + "{{ '%.*f' | format(n, 1.5) | length }}",
    LONG + "{{ ('\\n' * 99) | indent(s, blank=true) | length }}",
    TWICE + "{{ [a.x, b.x] | sort | length }}",
    TWICE + "{{ [a.x, b.x] | max | length }}",
    TWICE + "{{ a | string | length }}",
    TWICE + "{{ {'a': a.x}.values() | string | length }}",
    TWICE + "{{ {'a': a.x}.items() ~ '' }}",
    TWICE + "{{ a }}",
    TWICE + "{{ raise_exception(a) }}",
    PAIRS + "{{ [a.x] | unique | list | length }}",
    PAIRS + "{{ [{'k': a.x}] | groupby('k') | length }}",
    # Tests.
    TWICE + "{{ a.x == b.x }}",
    TWICE + "{{ 1 < 2 and a.x != b.x }}",
    TWICE + "{{ a.x in [b.x] }}",
    TWICE + "{{ a.x is eq b.x }}",
    TWICE + "{{ a.x is in [b.x] }}",
    TWICE + "{{ [a.x] | select('eq', b.x) | list | length }}",
    TWICE + "{{ a is lower }}",
    TWICE + "{% for i in [a.x, b.x] %}{{ loop.changed(i) }}{% endfor %}",
    PAIRS + "{{ {a.x: 1} | length }}",
    PAIRS + "{{ {1: 1}[a.x] }}",
    PAIRS + "{{ {}.get(a.x) }}",
    "{{ '%1000000000d' is divisibleby 5 }}",
    "{{ '%1000000000d' is even }}",
    "{{ '%1000000000d' is odd }}",
    # Methods.
    MANY + "{{ '{:{}}'.format(1, n) | length }}",
    MANY + "{{ '{:{w}}'.format(1, w=n) | length }}",
    MANY + "{{ '{a:{w}}'.format_map({'a': 1, 'w': n}) | length }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) | length }}",
    MANY + "{{ ('%*d' % (n, 1)) | length }}",
    "{{ ('a' * 99999).translate({97: 'b' * 99999}) | length }}",
    LONG + "{{ s.rfind('b' + s[:2 ** 20]) }}",
    LONG + "{{ s.rsplit('b' + s[:2 ** 20]) }}",
    LONG + "{{ s.strip('b' * 2 ** 20 + 'a') }}",
    LONG + "{{ s.join(s) | length }}",
    LONG + "{{ s.join(range(99999) | map('string')) | length }}",
    LONG + "{% for i in range(99) %}{% set x = ('a ' * 2 ** 20).split() %}{% endfor %}",
    LONG + "{{ ('\\t' * 2 ** 20).expandtabs(2 ** 20) | length }}",
    TWICE + "{{ [a.x].index(b.x) }}",
    TWICE + "{{ [a.x].count(b.x) }}",
]
REFUSED = [
    "{{ 'a'.encode() }}",
    "{{ ('ü' * 2 ** 20).encode('punycode') }}",
    "{{ (5).to_bytes(10 ** 10, 'big') }}",
    "{{ 'a' | attr('encode') }}{{ ('a' | attr('encode'))('idna') }}",
    "{{ strftime_now('%9999999Y' * 9999) }}",
    "{{ 'a' | wordwrap(0) }}",
    "{{ [1] | slice(0) | list }}",
]


@pytest.mark.parametrize("source", COSTLY)
def test_what_costs_much_is_refused_before_it_is_done(source: str) -> None:
    before = time.thread_time()
    with pytest.raises(RequestError, match="takes more than"):
        ChatTemplate(source, {}).render(MESSAGES, {}, 1000)
    assert time.thread_time() - before < sandbox.MOST_SECONDS, "only time has ended it"


@pytest.mark.parametrize("source", REFUSED)
def test_what_no_prompt_needs_is_refused(source: str) -> None:
    with pytest.raises(RequestError, match="the model's chat template refuses"):
        ChatTemplate(source, {}).render(MESSAGES, {}, 1000)


def test_filters_that_are_bounded_give_what_they_give() -> None:
    source = (
        "{{ [1, 2, 3] | slice(2, 0) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} "
        "{{ 'one two' | wordwrap(3) | replace('\\n', '/') }} {{ 'one' | wordwrap(10 ** 6) }} "
        "{{ 3.14159 | round(2) }} {{ [[1], [2]] | sum(start=[]) }} {{ 1 < 2 < 3 }} "
        "{{ 3 > 2 > 2 }} "
        "{{ 'a' in 'abc' }} {{ 'b' not in ['a'] }} {{ {(1, 2): 'x'}[(1, 2)] }} "
        "{{ '%-4s|' % 'a' }} {{ '{:>{}}'.format('a', 3) }} "
        "{{ 'b,a'.split(',') | sort | join(';') }} "
        "{{ ['b', 'a'] | reverse | list }} {{ 6 is divisibleby 3 }} {{ {'a': 1} | dictsort }}"
    )
    assert ChatTemplate(source, {}).render(MESSAGES, {}, 1000) == (
        "[[1, 2], [3, 0]] [[1, 2], [3, 0]] one/two one 3.14 [1, 2] True False True True x "
        "a   |   a a;b ['a', 'b'] True [('a', 1)]"
    )


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_loops_is_ended(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.05)
    with pytest.raises(RequestError, match="takes more than") as caught:
        ChatTemplate(source, {}).render(MESSAGES, {}, 1000)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("source", LARGE)
def test_a_template_that_makes_much_of_little_is_refused(source: str) -> None:
    before = time.thread_time()
    with pytest.raises(RequestError, match="takes more than"):
        ChatTemplate(source, {}).render(MESSAGES, {}, 1000)
    assert time.thread_time() - before < sandbox.MOST_SECONDS, "only time has ended it"


def test_what_templates_in_use_need() -> None:
    source = (
        "{% generation %}{{ messages[::-1][0].content[1:] }}{% endgeneration %}"
        "{{ {'b': 'é', 'a': 1} | tojson(indent=2, sort_keys=true) }}{{ strftime_now('%%') }}"
        "{% for m in messages %}{{ loop.last }}{% continue %}{% endfor %}"
        "{% for m in messages | map(attribute='role') %}{{ loop.length ~ m }}{% endfor %}"
        "{% for m in nothing %}{% else %}none{% endfor %}"
        "{{ ['a', 'b'] | join(', ') }}{{ 'a' ~ 1 ~ none }}{{ '%s-%s' % ('x', 2) }}"
    )
    text = ChatTemplate(source, {}).render(MESSAGES, {}, 1000)
    assert text == 'i{\n  "a": 1,\n  "b": "é"\n}%True1usernonea, ba1Nonex-2'


def test_a_model_may_have_another_template_for_tools() -> None:
    template = ChatTemplate("plain", {}, with_tools="tools: {{ tools | length }}")
    assert template.render(MESSAGES, {}, 100) == "plain"
    assert template.render(MESSAGES, {"tools": [1]}, 100) == "tools: 1"
    assert "tools: " in template.source
