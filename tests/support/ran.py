"""What has run, of lives and of fuzzed cases: a line of JSON for each batch, in a file of choice.

python -m support.ran FILE...

adds up what the files say: seeds that ran more than once count once, processor time counts always.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Batch:
    """Seeds from ``first`` on.

    what: was drawn of them. seconds: of a processor. commit: of the sources, with a "+" if they
    had been changed since.
    """

    what: str
    first: int
    count: int
    seconds: float
    commit: str


@cache
def commit() -> str:
    """Of these sources; "" where git does not know."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        told = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return told.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + "+" * bool(git("status", "--porcelain", "-uno", "../.."))
    except OSError:
        return ""


def note(ledger: Path | None, what: str, first: int, count: int, seconds: float) -> None:
    """Add a batch to a file, in one write; None: nobody wants to know."""
    if ledger is not None and count:
        line = json.dumps(asdict(Batch(what, first, count, round(seconds, 3), commit())))
        with ledger.open("a") as file:
            file.write(line + "\n")


def read(ledgers: Iterable[Path]) -> list[Batch]:
    lines = [line for ledger in ledgers for line in ledger.read_text().splitlines()]
    return [Batch(**json.loads(line)) for line in lines]


def distinct(batches: Iterable[Batch]) -> int:
    """How many seeds there are in batches of one kind."""
    total, known = 0, 0
    for first, end in sorted((one.first, one.first + one.count) for one in batches):
        total += max(0, end - max(first, known))
        known = max(known, end)
    return total


def told(batches: Iterable[Batch]) -> str:
    """The sums, a line for each kind."""
    kinds: dict[str, list[Batch]] = {}
    for one in batches:
        kinds.setdefault(one.what, []).append(one)
    return "\n".join(
        f"{what}: {distinct(own):,} seeds, {sum(one.seconds for one in own) / 3600:,.3f} hours of "
        f"a processor, commits: {len({one.commit for one in own}):,}"
        for what, own in sorted(kinds.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="ran", description=__doc__)
    parser.add_argument("ledgers", type=Path, nargs="+", metavar="FILE")
    print(told(read(parser.parse_args().ledgers)))


if __name__ == "__main__":
    main()
