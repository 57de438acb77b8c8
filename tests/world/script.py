"""What happens in a life, as data: made from a seed, so that any life can be told again.

Every event holds all that decides it, and no event looks at another, so that a script from which
events are left out is a script too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from world.settings import Settings

HOUR = 3600.0

KEYS = ("", "key-of-ann", "key-of-bob", "key-of-cid")
"""What clients send as their key; the first is none."""


@dataclass(frozen=True)
class Ask:
    """A completion."""

    at: float
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    n: int = 1
    beams: int = 0
    stop: tuple[str, ...] = ()
    stream: bool = False
    key: str = ""
    user: str = ""
    priority: int = 0
    copies: int = 1  # of the prompt, in the same request
    patience: float | None = None  # seconds until the client hangs up
    dawdle: float = 0.0  # seconds that it takes over each piece of a stream
    upload: float = 0.0  # seconds over which its body trickles in
    unfinished: bool = False  # half of its body never comes


@dataclass(frozen=True)
class Nonsense:
    """A request that can only be refused, or a path that is not there."""

    at: float
    path: str
    body: bytes
    key: str = ""


@dataclass(frozen=True)
class Talk:
    """A streaming session: opened, and then some turns, with pauses; perhaps never closed."""

    at: float
    turns: tuple[tuple[tuple[int, ...], int, int], ...]  # (input, max_tokens, seed) of each
    soft_cuts: tuple[tuple[float, int] | None, ...]  # (bias, fade), before the turn's input
    pause: float
    key: str = ""
    user: str = ""
    closes: bool = True
    leaves_during: int = -1  # the turn in which the client hangs up


@dataclass(frozen=True)
class Fault:
    """What goes wrong. ``what`` is one of FAULTS; ``amount`` is its measure."""

    at: float
    what: str
    amount: float = 1.0


Event = Ask | Nonsense | Talk | Fault

FAULTS = {
    "step raises": "so many steps fail",
    "step out of memory": "so many steps are refused memory",
    "not a number": "so many steps give NaN for one sequence",
    "late": "the next step takes so many seconds more",
    "engine dies": "the scheduler raises outside of any step",
    "swap fails": "the swap file fails for so many seconds",
    "swap lies": "blocks come back different for so many seconds",
    "disk full": "nothing more can be written to the trace",
    "tokenizer out of memory": "so many texts are refused memory",
    "clock jumps": "the engine's clock is so many seconds further on, or back",
    "drain": "SIGTERM, and again after so many seconds",
    "health": "a look at /health and /metrics",
}


@dataclass(frozen=True)
class Script:
    """One life: how the server is set up, and what happens, in order of time."""

    seed: int
    settings: Settings
    events: tuple[Event, ...]


def make_script(seed: int, hours: float) -> Script:
    """Bursts of requests, hours apart, with faults in and between them."""
    rng = random.Random(seed)
    settings = Settings.draw(rng)
    events: list[Event] = []
    start = 0.0
    while (start := start + rng.expovariate(1.0) * HOUR) < hours * HOUR:
        events += _burst(rng, start)
    return Script(seed, settings, tuple(sorted(events, key=lambda event: event.at)))


def _burst(rng: random.Random, start: float) -> list[Event]:
    """Some minutes in which several clients are there at once."""
    length = rng.choice([1.0, 20.0, 120.0])
    prefix = _tokens(rng, rng.choice([0, 4, 8, 20]))
    events: list[Event] = []
    for _ in range(rng.choice([1, 2, 3, 5, 12])):
        at = start + rng.random() * length
        kind = rng.random()
        if kind < 0.12:
            events.append(_nonsense(rng, at))
        elif kind < 0.22:
            events.append(_talk(rng, at))
        else:
            events.append(_ask(rng, at, prefix))
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        events.append(_fault(rng, start + rng.random() * length))
    return events


def _ask(rng: random.Random, at: float, prefix: tuple[int, ...]) -> Ask:
    beams = rng.choice([0] * 7 + [2, 3])
    return Ask(
        at,
        prefix + _tokens(rng, rng.randint(1, 12)),
        rng.choice([1, 3, 8, 20]),
        rng.randrange(1000),
        n=1 if beams else rng.choice([1, 1, 1, 2, 3]),
        beams=beams,
        stop=() if beams else _stops(rng),
        stream=rng.random() < 0.5,
        key=rng.choice(KEYS[1:]),
        user=rng.choice(["", "", "eve", "dan"]),
        priority=rng.choice([0, 0, 0, -3, 5]),
        copies=rng.choice([1] * 8 + [3, 40]),
        patience=rng.choice([None, None, None, 0.0, rng.random() * 5, rng.random() * 60]),
        dawdle=rng.choice([0.0, 0.0, 0.0, rng.random() * 3]),
        upload=rng.choice([0.0] * 6 + [rng.random() * 10, 100.0]),
        unfinished=rng.random() < 0.04,
    )


def _talk(rng: random.Random, at: float) -> Talk:
    turns = [
        (_tokens(rng, rng.randint(1, 8)), rng.choice([1, 4, 10]), rng.randrange(1000))
        for _ in range(rng.randint(1, 4))
    ]
    cuts = [(bias, fade) for bias in (-math.inf, -1.5, 0.0) for fade in (0, 3, 60)]
    later = [rng.choice([None, rng.choice(cuts)]) for _ in turns[1:]]
    return Talk(
        at,
        tuple(turns),
        soft_cuts=(None, *later),  # before the first there is nothing to cut off
        pause=rng.choice([0.0, 5.0, 600.0, 4000.0]),
        key=rng.choice(KEYS[1:]),
        user=rng.choice(["", "eve"]),
        closes=rng.random() < 0.6,
        leaves_during=rng.choice([-1, -1, 0, 1]),
    )


def _nonsense(rng: random.Random, at: float) -> Nonsense:
    bodies = [
        b"", b"{", b"[]", b"null", b'{"model": "demo"}', b'{"model": "other", "prompt": "x"}',
        b'{"model": "demo", "prompt": ""}', b'{"model": "demo", "prompt": [99999]}',
        b'{"model": "demo", "prompt": "x", "n": 0}', b'{"model": "demo", "prompt": "\\ud800"}',
        b'{"model": "demo", "prompt": "x", "priority": ' + b"9" * 600 + b"}",
        b'{"model": "demo", "prompt": "x", "temperature": 1e999}',
        b'{"model": "demo", "prompt": "' + b"x" * 9000 + b'"}',
        b'{"model": "demo", "prompt": [' + b"1," * 5000 + b"1]}",
        b'{"model": "demo", "prompt": [' + b"1," * 60_000 + b"1]}",
        b"[" * 5000, rng.randbytes(rng.randint(1, 300)), b'{"a": ' * 300,
    ]  # fmt: skip
    paths = ["/v1/completions"] * 4 + ["/v1/chat/completions", "/v1/sessions", "/v1/nothing"]
    return Nonsense(at, rng.choice(paths), rng.choice(bodies), key=rng.choice(KEYS))


def _fault(rng: random.Random, at: float) -> Fault:
    what = rng.choice([name for name in FAULTS if name != "engine dies"] * 3 + ["engine dies"])
    amounts = {
        "late": rng.choice([2.0, 30.0, 300.0]),
        "swap fails": rng.choice([10.0, 7200.0]),
        "swap lies": rng.choice([10.0, 7200.0]),
        "clock jumps": rng.choice([-5.0, -86400.0, 3.0, 3600.0, 86400.0]),
        "drain": rng.choice([0.5, 5.0, 1000.0]),
    }
    return Fault(at, what, amounts.get(what, float(rng.choice([1, 1, 2, 5]))))


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(1, 49) for _ in range(count))


def _stops(rng: random.Random) -> tuple[str, ...]:
    """Strings that the fake model may well come to write: its tokens are single signs."""
    if rng.random() < 0.7:
        return ()
    signs = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOP"
    lengths: Sequence[int] = [1, 1, 2, 3]
    return tuple(
        "".join(rng.choice(signs) for _ in range(rng.choice(lengths)))
        for _ in range(rng.randint(1, 4))
    )
