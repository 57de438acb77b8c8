"""Chat templates that nobody has read: they take no more than they may, and nobody else pays."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire import LLM
from quire.core.errors import RequestError
from quire.engine.assembly.tokenizer import BoxedTemplates
from quire.text.chat_template import ChatTemplate
from support.server_process import ServerProcess

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
    LONG + "{{ s.strip('b' * 2 ** 20 + 'a') }}",
    LONG + "{{ s.join(s) | length }}",
    LONG + "{{ s.join(range(99999) | map('string')) | length }}",
    LONG + "{% for i in range(99) %}{% set x = ('a ' * 2 ** 20).split() %}{% endfor %}",
    LONG + "{{ ('\\t' * 2 ** 20).expandtabs(2 ** 20) | length }}",
    TWICE + "{{ [a.x].index(b.x) }}",
    TWICE + "{{ [a.x].count(b.x) }}",
]
SECONDS = 0.4


@pytest.fixture(scope="module")
def boxed() -> BoxedTemplates:
    return BoxedTemplates(SECONDS)


def refusal(boxed: BoxedTemplates, source: str) -> RequestError:
    with pytest.raises(RequestError, match="cannot put these messages together: it") as caught:
        ChatTemplate(source, {}, renderer=boxed).render(MESSAGES, {}, 1000)
    return caught.value


@pytest.mark.parametrize("sources", [ENDLESS, LARGE, COSTLY], ids=["endless", "large", "costly"])
def test_what_takes_long_or_much_is_refused(boxed: BoxedTemplates, sources: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda source: refusal(boxed, source), sources))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert {error.field for error in found} == {"messages"}
    assert after.ru_maxrss - before.ru_maxrss < 64 << 10, "kilobytes"
    assert after.ru_utime - before.ru_utime < 0.1 * SECONDS * len(sources), "others wait for it"


def test_others_are_served_after_it(boxed: BoxedTemplates) -> None:
    refusal(boxed, ENDLESS[0])
    template = ChatTemplate("{{ messages[0].content }}", {}, renderer=boxed)
    assert template.render(MESSAGES, {}, 1000) == "Hi"


def test_a_request_s_own_template_has_a_process_of_its_own() -> None:
    """Whatever it makes of it: what it leaves there, nobody else meets."""
    boxed = BoxedTemplates(SECONDS)
    template = ChatTemplate("{{ range(9) | random }}", {}, renderer=boxed)
    own = {"chat_template": "{{ messages[0].content }} {{ given }}", "given": 5}
    assert template.render(MESSAGES, own, 1000) == "Hi 5"
    assert not boxed._box._idle, "no worker of others has seen it"
    for source in ("{% for %}", "{{ raise_exception('no') }}", ENDLESS[0]):
        with pytest.raises(RequestError) as caught:
            template.render(MESSAGES, {"chat_template": source}, 1000)
        assert caught.value.field == "chat_template"


@pytest.mark.parametrize("value", [lambda: 1, object], ids=["a function", "a type"])
def test_what_is_no_value_of_json_is_refused_or_shown(boxed: BoxedTemplates, value: Any) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, renderer=boxed)
    try:
        assert template.render(MESSAGES, {"given": value}, 1000) == "Hi"
    except RequestError as error:
        assert error.field == "messages"


def test_a_model_renders_in_a_box() -> None:
    with LLM(chat_template=LARGE[0]) as llm, pytest.raises(RequestError, match="too much memory"):
        llm.chat(MESSAGES)


@pytest.fixture(scope="module")
def trusting() -> Iterator[ServerProcess]:
    flags = "serve --port 0 --kv-cache-memory-bytes 4MiB --shutdown-timeout 0"
    given = *flags.split(), "--served-model-name", "demo", "--trust-request-chat-template"
    with ServerProcess("-m", "quire", *given) as server:
        yield server


@pytest.mark.parametrize("source", [
    "{{ range(10) | slice(10 ** 9) | list }}", "{{ range(10) | batch(10 ** 9, 'x') | list }}",
    "{{ ('a' * 10 ** 6) | wordwrap(1) }}",
])  # fmt: skip
def test_a_server_goes_on(trusting: ServerProcess, source: str) -> None:
    asked = {"model": "demo", "messages": MESSAGES, "max_tokens": 1}
    url = f"{trusting.url}/v1/chat/completions"
    with ThreadPoolExecutor(1) as thread:
        hostile = thread.submit(
            httpx.post, url, json={**asked, "chat_template": source}, timeout=60.0
        )
        innocent = {"messages": MESSAGES, "model": "demo", "max_tokens": 1}
        for _ in range(3):
            assert httpx.post(url, json=innocent, timeout=60.0).status_code == 200
        error = hostile.result().json()["error"]
    assert error["param"] == "chat_template" and "cannot put" in error["message"]
    status = Path(f"/proc/{trusting.process.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    assert peak < 2 << 20, "kilobytes"


def test_a_server_ends_while_a_template_loops(trusting: ServerProcess) -> None:
    asked = {"model": "demo", "messages": MESSAGES, "chat_template": ENDLESS[0]}
    with ThreadPoolExecutor(1) as thread:
        url = f"{trusting.url}/v1/chat/completions"
        hostile = thread.submit(httpx.post, url, json=asked, timeout=60.0)
        time.sleep(0.3)  # until it is at it
        trusting.process.send_signal(signal.SIGTERM)
        assert trusting.ended() in (0, signal.SIGXCPU)
        with pytest.raises(httpx.HTTPError):
            hostile.result().raise_for_status()
