"""Chat templates that nobody has read: what they may take, and what they must be able to do."""

from __future__ import annotations

import time

import pytest

from quire.engine import sandbox
from quire.engine.chat_template import ChatTemplate
from quire.errors import RequestError

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
