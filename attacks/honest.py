"""What attacks are measured against: a server without them, idle or full of honest clients."""

from __future__ import annotations

import time

from attacks.attack import SERVED, Attack, completion
from attacks.prompts import random_ids
from attacks.target import Target

_CLIENTS = 128  # as many as run at once by default
_APART = 0.03  # seconds between the arrivals of two of them


def full_house(target: Target) -> None:
    """Long prompts for the whole of the default pool, and some tokens of answer to each."""
    length = target.limits.max_model_len - 40

    def client(number: int) -> None:
        prompt = random_ids(number, length)
        time.sleep(number * _APART)
        target.post(completion(target, prompt=prompt, max_tokens=32, stream=True))

    target.together(_CLIENTS, client)


def nothing(target: Target) -> None:
    for _ in target.rounds(pause=0.1):
        pass


QUIET = Attack("nobody else", nothing, SERVED)
HONEST = Attack("128 honest clients", full_house, SERVED)
