"""What an attack is, and the plainest kind: the same requests again and again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attacks.crowd import crowd
from attacks.target import LEFT, Target, http_request

SERVED = frozenset({"200"})
REFUSED = frozenset({"400"})
TOO_LARGE = frozenset({"400", "413"})
BUSY = frozenset({"429"})  # what any request may hear while others come
# Of what is no proper HTTP, or takes too long: an error of the client's, or no answer at all.
DROPPED = frozenset({"400", "408", "413", "414", "429", "431", "503", "closed"})


@dataclass(frozen=True)
class Attack:
    """One hostile case.

    run: does it, from the first request until the target's time is up.
    answers: the only ones that the server may give; any other is a finding.
    """

    name: str
    run: Callable[[Target], None]
    answers: frozenset[str]

    def unexpected(self, answers: Sequence[str]) -> list[str]:
        """Those that should not have come. To hang up in time is the attacker's right."""
        return sorted(set(answers) - self.answers - BUSY - {LEFT})


def completion(target: Target, **fields: Any) -> bytes:
    """The body of a completion, of one token unless the fields say otherwise."""
    body = {"model": target.limits.model, "prompt": "The town", "max_tokens": 1, **fields}
    return json.dumps(body).encode()


def chat(target: Target, **fields: Any) -> bytes:
    """The body of a chat, likewise."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": target.limits.model, "messages": messages, "max_tokens": 1, **fields}
    return json.dumps(body).encode()


def posting(
    bodies: Callable[[Target], bytes | Sequence[bytes]],
    *,
    path: str = "/v1/completions",
    parallel: int = 2,
    pause: float = 0.2,
) -> Callable[[Target], None]:
    """Post bodies in turn, made beforehand, over ``parallel`` connections until the time is up."""

    def run(target: Target) -> None:
        made = bodies(target)
        requests = [
            http_request(path, body) for body in ([made] if isinstance(made, bytes) else made)
        ]
        crowd(target, requests, parallel, pause)

    return run


def posting_chats(
    bodies: Callable[[Target], bytes | Sequence[bytes]], parallel: int = 2, pause: float = 0.2
) -> Callable[[Target], None]:
    return posting(bodies, path="/v1/chat/completions", parallel=parallel, pause=pause)
