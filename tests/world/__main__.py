"""Tells lives: of seeds in turn, or one of them again, shortened if it fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from support.least import least
from world.life import Life
from world.script import Script, make_script

HOURS = 24.0


def failure_of(script: Script) -> BaseException | None:
    try:
        Life(script).run()
    except Exception as error:
        return error
    return None


def shortest(script: Script, fails: Callable[[Script], bool]) -> Script:
    """With as few events as it fails with."""
    events = least(script.events, lambda fewer: fails(replace(script, events=fewer)))
    return replace(script, events=events)


def tell(seed: int) -> int:
    """One life, event by event; the exit status."""
    script = make_script(seed, HOURS)
    if (failure := failure_of(script)) is not None:
        number = len(script.events)
        print(f"seed {seed} fails: {failure!r}", flush=True)
        script = shortest(script, lambda fewer: failure_of(fewer) is not None)
        print(f"it does so with {len(script.events)} of its {number} events:")
    life = Life(script)
    try:
        life.run()
    except Exception:
        print(script.settings, *life.transcript, sep="\n")
        traceback.print_exc(limit=-4)
        return 1
    print(script.settings, *life.transcript, sep="\n")
    digest = blake2b("\n".join(life.transcript).encode(), digest_size=8).hexdigest()
    print(f"seed {seed} is well: {len(script.events)} events, transcript {digest}")
    return 0


def search(first: int, seconds: float) -> int:
    """Lives from seed ``first`` on, until one fails or the time is over; the exit status."""
    started = time.monotonic()
    for seed in count(first):
        if time.monotonic() - started > seconds:
            break
        if failure_of(make_script(seed, HOURS)) is not None:
            return tell(seed)
    hours, minutes = (seed - first) * HOURS, (time.monotonic() - started) / 60
    print(
        f"{hours:,.0f} server hours in {minutes:.1f} minutes are well: seeds {first} to {seed - 1}"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="world", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="tell this one")
    parser.add_argument("--seconds", type=float, default=60.0, help="look for one that fails")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with (%(default)s)")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return tell(arguments.seed)
    return search(arguments.first, arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
