"""A chat template of the client's own that takes long, or much.

Only a server with ``--trust-request-chat-template`` takes one; the one of ``make attack`` has it.
"""

from __future__ import annotations

from collections.abc import Callable

from attacks.attack import REFUSED, SERVED, Attack, chat, posting_chats
from attacks.target import Target

_LARGE = (
    "{{ range(10) | slice(10 ** 9) | list }}",
    "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "{{ ('a' * 10 ** 7) | list | length }}",
    "{% set ns = namespace(a='a') %}{% for i in range(99) %}"
    "{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
)
_LONG = (
    "{{ ('a' * 10 ** 6) | wordwrap(1) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ range(99999) | map('string') | join | upper | length }}",
    "{{ ('a b ' * 10 ** 5) | title | wordcount }}",
    "{{ range(99999) | groupby('a') | list | length }}",
)
_DEEP = ("{{ " + "(" * 9_999 + "1" + ")" * 9_999 + " }}", "{% if 1 %}" * 999 + "{% endif %}" * 999)


def own(templates: tuple[str, ...]) -> Callable[[Target], list[bytes]]:
    return lambda target: [chat(target, chat_template=template) for template in templates]


TEMPLATES = (
    Attack("templates that take much", posting_chats(own(_LARGE)), SERVED | REFUSED),
    Attack("templates that take long", posting_chats(own(_LONG)), SERVED | REFUSED),
    Attack("templates that go deep", posting_chats(own(_DEEP)), SERVED | REFUSED),
)
