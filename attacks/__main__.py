"""Attack a server of one's own, and say how everybody else fared.

    python -m attacks [--only "prompt of 1 MB"] [--seconds 4] [flags of quire serve]

Starts ``quire serve`` with the demonstration model on a loopback port. The attacker is polite to
the machine, not to the server: it runs at a lower priority, prepares what it sends, and pauses.
Ends with status 1 if a goal is missed. Flags that are not listed here are the server's.
"""

from __future__ import annotations

import argparse
import json
import sys

from attacks.catalogue import ATTACKS, chosen
from attacks.observer import Observation
from attacks.report import as_json, heading, judge, row
from attacks.storm import Storm


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="name the attacks, and do nothing")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="attacks with this in the name"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each (%(default)s)")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds to recover in (%(default)s)"
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        help="the server's, in seconds (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments, flags = parser.parse_known_args()
    attacks = chosen(arguments.only)
    if arguments.list or not attacks:
        print(*(attack.name for attack in attacks or ATTACKS), sep="\n")
        return 0 if attacks else 2

    observations: list[Observation] = []
    out = sys.stderr if arguments.json else sys.stdout

    def tell(observation: Observation) -> None:
        observations.append(observation)
        print(row(observation), file=out, flush=True)

    print(heading(), file=out, flush=True)
    lives = Storm(
        flags, arguments.shutdown_timeout, arguments.seconds, arguments.patience, tell
    ).run(attacks)
    verdicts = judge(observations, lives)
    print("", *(f"{'✓' if met else '✗'} {text}" for met, text in verdicts), sep="\n", file=out)
    if arguments.json:
        print(json.dumps(as_json(observations, lives)))
    return int(not all(verdict.met for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
