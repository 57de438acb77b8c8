"""Chat templates that nobody has read: what they must be able to do."""

from __future__ import annotations

import pytest

from quire.core.errors import RequestError
from quire.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_filters_give_what_they_give() -> None:
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


def test_lists_may_be_queues() -> None:
    def shown(source: str) -> str:
        return ChatTemplate(source, {}).render(MESSAGES, {}, 1e6)

    queue = "{% set a = [] %}{% for m in messages %}{% set _ = a.append(m.content) %}{% endfor %}"
    assert shown(queue + "{{ a.pop(0) }}{{ a | length }}") == "Hi0"
    for given in ("messages", "messages[0].parts"):
        with pytest.raises(RequestError, match="unsafe"):
            ChatTemplate("{% set _ = " + given + ".append(1) %}", {}).render(
                [{"role": "user", "parts": []}], {}, 1e6
            )
    for forbidden in ("clear()", "extend([1])", "insert(0, 1)", "sort()"):
        with pytest.raises(RequestError, match="unsafe"):
            shown(queue + "{{ a." + forbidden + " }}")


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


@pytest.mark.parametrize("source", [
    "{{ messages.append(1) }}", "{{ messages[0].update(role='x') }}", "{{ ''.__class__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}", "{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}", "{{ 'a' | wordwrap(0) }}", "{{ nothing.at_all.here }}",
    "{{ messages | nothing }}",
])  # fmt: skip
def test_what_no_prompt_needs_is_refused(source: str) -> None:
    try:
        text = ChatTemplate(source, {}).render(MESSAGES, {}, 1000)
    except RequestError as error:
        assert error.field == "messages"
    else:
        assert text == "", "what is out of reach is undefined"
