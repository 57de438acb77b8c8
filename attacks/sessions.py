"""Streaming sessions: all that there are, as long as they may be."""

from __future__ import annotations

from attacks.attack import REFUSED, SERVED, Attack
from attacks.prompts import random_ids
from attacks.target import Target

_SESSIONS = "/v1/sessions"
_MOST = 10_000  # tried, where the server has no limit


def open_all(target: Target) -> list[str]:
    """Open sessions until the server refuses; their ids."""
    target.begin()
    opened: list[str] = []
    while len(opened) < _MOST and target.time_left > 0:
        status, card = target.call("POST", _SESSIONS, {"model": target.limits.model})
        if status != "200":
            break
        opened.append(card["id"])
    return opened


def flood(target: Target) -> None:
    """Take them all, fill each, list them and go on from them; close them at the end.

    A real attacker would not, and they would expire; here the next attack waits for the blocks.
    """
    length = target.limits.max_model_len - 2
    opened = open_all(target)
    try:
        for number, session in enumerate(opened):
            if target.time_left < 1.0:
                break
            append = {"input": random_ids(number, length)}
            target.call("POST", f"{_SESSIONS}/{session}/append", append)
            target.call("POST", f"{_SESSIONS}/{session}/generate", {"max_tokens": 1})
            target.call("GET", _SESSIONS)
    finally:
        close = Target(target.address, target.limits, seconds=5.0)
        for session in opened:
            close.call("DELETE", f"{_SESSIONS}/{session}")


def opening_and_closing(target: Target) -> None:
    for _ in target.rounds(pause=0.005):
        status, card = target.call("POST", _SESSIONS, {"model": target.limits.model})
        if status == "200":
            target.call("DELETE", f"{_SESSIONS}/{card['id']}")


SESSIONS = (
    # 405: this server does not list them
    Attack("all sessions, filled", flood, SERVED | REFUSED | {"405", "409"}),
    Attack("sessions opened and closed", opening_and_closing, SERVED),
)
