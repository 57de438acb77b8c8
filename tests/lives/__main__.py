"""Lives, one after the other; or one of them again, as short as it still fails.

python -m lives [NUMBER] [--first N] [--lives N] [--jobs N] [--ledger FILE]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from lives.life import live
from lives.script import Life, draw
from support import ran
from support.least import least

_AT_ONCE = 500  # lives that a process is given


def failure_of(life: Life) -> Exception | None:
    logging.disable(logging.CRITICAL)  # of steps that fail, as they should
    try:
        live(life)
    except Exception as error:
        return error
    finally:
        logging.disable(logging.NOTSET)
    return None


def shortest(life: Life) -> Life:
    """With as few events, and all else as plain, as it still fails in the same place."""
    place = _place(failure_of(life))

    def fails(other: Life) -> bool:
        return _place(failure_of(other)) == place

    before = None
    while life != before:
        before = now = life
        events = least(life.events, lambda fewer, now=now: fails(replace(now, events=fewer)))  # type: ignore[misc]
        life = replace(life, events=events)
        for field in fields(life.settings):
            plainer = replace(life, settings=_without(life.settings, field))
            life = plainer if plainer != life and fails(plainer) else life
        for number, event in enumerate(life.events):
            for field in fields(event):
                plain = _without(life.events[number], field)
                events = (*life.events[:number], plain, *life.events[number + 1 :])
                plainer = replace(life, events=events)
                life = plainer if plainer != life and fails(plainer) else life
    return life


def _place(error: Exception | None) -> tuple[type[Exception], str, int] | None:
    """The kind of error and the line that raised it."""
    if error is None:
        return None
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), frame.filename, frame.lineno or 0


def _without(one: Any, field: Field[Any]) -> Any:
    """The same with the value of a field that takes what it stands for away."""
    return one if field.default is MISSING else replace(one, **{field.name: field.default})


class Lived(NamedTuple):
    """What has happened in lives.

    wrong: the number of the first that is not well. seconds: of a processor.
    """

    first: int
    count: int
    happened: Counter[str]
    wrong: int | None
    seconds: float


def some(numbers: range) -> Lived:
    """One after the other, up to the first that is not well."""
    happened: Counter[str] = Counter()
    began, lived, wrong = time.process_time(), 0, None
    logging.disable(logging.CRITICAL)
    try:
        for number in numbers:
            lived += 1
            try:
                happened += live(draw(number))
            except Exception:
                wrong = number
                break
    finally:
        logging.disable(logging.NOTSET)
    return Lived(numbers.start, lived, happened, wrong, time.process_time() - began)


def search(
    first: int, count: int, jobs: int, ledger: Path | None = None
) -> tuple[Counter[str], int | None]:
    """``some`` on as many processes; ends with the first that is not well, if one is."""
    last = first + count
    parts = [range(n, min(n + _AT_ONCE, last)) for n in range(first, last, _AT_ONCE)]
    happened: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        for lived in map(some, parts) if pool is None else pool.map(some, parts):
            happened += lived.happened
            ran.note(ledger, "lives", lived.first, lived.count, lived.seconds)
            if lived.wrong is not None:
                if pool is not None:
                    pool.shutdown(cancel_futures=True)
                return happened, lived.wrong
    return happened, None


def tell(number: int) -> int:
    """One life; the exit status."""
    life = draw(number)
    error = failure_of(life)
    if error is None:
        print(life.told(), "is well", sep="\n")
        return 0
    life = shortest(life)
    error = failure_of(life)
    assert error is not None
    print(life.told())
    traceback.print_exception(error, limit=-4)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="lives", description=__doc__)
    parser.add_argument("number", type=int, nargs="?", help="this one again")
    parser.add_argument("--first", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--lives", type=int, default=10_000, help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="of what has run, added to")
    given = parser.parse_args()
    if given.number is not None:
        return tell(given.number)
    began = time.monotonic()
    happened, wrong = search(given.first, given.lives, given.jobs, given.ledger)
    if wrong is not None:
        print(f"life {wrong} is not well", flush=True)
        return tell(wrong)
    seconds = time.monotonic() - began
    print(f"{given.lives:,} lives from {given.first} on are well; {seconds:,.0f} s: {happened}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
