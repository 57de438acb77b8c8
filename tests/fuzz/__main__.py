"""Cases in turn, and what came of them; or one of them again.

    cd tests; PYTHONPATH=.. python -m fuzz [LANGUAGE [SEED]] [--seconds 60] [--first 0]

A case is its LANGUAGE and the SEED that it is drawn with. Of each kind of finding the first is made
smaller. Ends with status 1 after a crash, after what takes too much memory, and after what comes
out wrong. What takes long is told; a server ends that by its clock.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fuzz.case import LANGUAGES, Case, drawn, remade
from fuzz.child import Limits, Outcome, run
from fuzz.corpus import CORPUS
from fuzz.served import ask, servers
from fuzz.shrink import shrunk
from support import ran

_SHOWN = 1_200  # characters of a case
_AT_ONCE = 50  # seeds that are written down at once
_FAILURES = {"crashed", "large", "wrong"}


class Tried(NamedTuple):
    """A case, and what came of it. seed: the walk's; the case's too where it was drawn."""

    name: str
    case: Case
    seed: int
    outcome: Outcome

    def __str__(self) -> str:
        kind, why, stage, seconds, memory = self.outcome
        cost = f"{seconds:.1f} s and {memory / 2**20:,.0f} MiB"
        return f"{self.name}: {kind} at {stage} after {cost}: {why}"


def smaller(tried: Tried, limits: Limits, seconds: float) -> Case:
    """The smallest case that is found to fail alike."""
    language, seed = tried.case.language, tried.seed

    def fails(choices: list[int]) -> bool:
        return run(remade(language, choices), seed, limits).like(tried.outcome)

    return remade(language, shrunk(drawn(language, seed)[1], fails, seconds))


def search(languages: list[str], first: int) -> Iterator[tuple[str, Case, int]]:
    """Of seeds from ``first`` on, of all languages in turn."""
    for seed in count(first):
        for language in languages:
            yield f"{language} {seed}", drawn(language, seed)[0], seed


def regressions(rounds: int) -> Iterator[tuple[str, Case, int]]:
    """Each with several seeds, which decide the doors."""
    for seed in range(rounds):
        for name, case in CORPUS.items():
            yield name, case, seed


def tried(
    cases: Iterator[tuple[str, Case, int]], limits: Limits, *, served: bool
) -> Iterator[Tried]:
    """What comes of cases: each in a process of its own, or all of a server."""
    if served:
        for (name, case, seed), server in zip(cases, servers(), strict=False):
            yield Tried(name, case, seed, ask(server, case, seed, limits))
    else:
        for name, case, seed in cases:
            yield Tried(name, case, seed, run(case, seed, limits))


def report(all_tried: Iterator[Tried], given: argparse.Namespace, limits: Limits) -> int:
    """Tell of findings as they come, and of all at the end; the exit status."""
    started = time.monotonic()
    kinds, used, most = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    known = set[tuple[str, str, str]]()
    account = _Account(given.ledger, given.language or "all languages")
    for number, one in enumerate(_until_interrupted(all_tried), 1):
        language, outcome = one.case.language, one.outcome
        account.add(one)
        kinds[language, outcome.kind] += 1
        used[language] += round(outcome.seconds * 1000)
        most[language] = max(most[language], outcome.memory)
        if outcome.is_finding:
            print(one, flush=True)
            sign = (language, outcome.kind, outcome.why[:40] if outcome.kind == "wrong" else "")
            if given.shrinking and sign not in known:
                known.add(sign)
                case = smaller(one, limits, given.shrinking)
                print(f"    as: {json.dumps(case.given, ensure_ascii=False)[:_SHOWN]}", flush=True)
        if number == given.cases or time.monotonic() - started > given.seconds:
            break
    account.write()
    for language in used:
        came = [f"{n:,} {kind}" for (of, kind), n in sorted(kinds.items()) if of == language]
        cost = f"{used[language] / 1000:8,.0f} s  {most[language] / 2**20:6,.0f} MiB at most"
        print(f"{language:10}{cost}  {', '.join(came)}")
    print(f"{kinds.total():,} cases, {used.total() / 3.6e6:.3f} hours of a processor")
    return int(any(kind in _FAILURES for _, kind in kinds))


class _Account:
    """Writes seeds into a ledger, some hundred at once; of the last it may have only begun."""

    def __init__(self, ledger: Path | None, languages: str) -> None:
        self._ledger, self._what = ledger, f"fuzzed cases of {languages}"
        self._seeds: list[int] = []
        self._began = _processor_seconds()

    def add(self, one: Tried) -> None:
        if self._seeds and one.seed != self._seeds[-1] and len(self._seeds) >= _AT_ONCE:
            self.write()
        if not self._seeds or one.seed != self._seeds[-1]:
            self._seeds.append(one.seed)

    def write(self) -> None:
        now = _processor_seconds()
        first = self._seeds[0] if self._seeds else 0
        ran.note(self._ledger, self._what, first, len(self._seeds), now - self._began)
        self._seeds, self._began = [], now


def _processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _until_interrupted(all_tried: Iterator[Tried]) -> Iterator[Tried]:
    with suppress(KeyboardInterrupt):
        yield from all_tried


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("language", nargs="?", choices=sorted(LANGUAGES), help="default: all")
    parser.add_argument("seed", nargs="?", type=int, help="try this one, and nothing else")
    parser.add_argument("--corpus", action="store_true", help="try what has failed once")
    parser.add_argument("--server", action="store_true", help="ask a real server, at its doors")
    parser.add_argument("--seconds", type=float, default=60.0, help="to go on (%(default)s)")
    parser.add_argument("--cases", type=int, help="to try, if there is time for them")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with (%(default)s)")
    parser.add_argument(
        "--clock", type=float, default=10.0, help="seconds for a case (%(default)s)"
    )
    parser.add_argument(
        "--shrinking", type=float, default=60.0, help="seconds for a finding (%(default)s)"
    )
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="of what has run, added to")
    given = parser.parse_args()
    if given.corpus:
        given.ledger = None  # they are drawn from no seeds
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(errors="backslashreplace")  # a case may hold half a surrogate pair
    limits = Limits(given.clock)
    languages = [given.language] if given.language else list(LANGUAGES)
    first = given.first
    if given.seed is not None:
        first, given.cases = given.seed, 1
    if given.corpus or given.server:
        given.shrinking = 0.0  # they are small, or cannot be made smaller there
    cases = regressions(3 if given.server else 1) if given.corpus else search(languages, first)
    return report(tried(cases, limits, served=given.server), given, limits)


if __name__ == "__main__":
    sys.exit(main())
