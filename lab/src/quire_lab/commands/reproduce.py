"""``quire reproduce``: the figures of the PagedAttention paper beside simulated ones."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from quire.tools.commands.command import ELSEWHERE, Command


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="reproduction", metavar="DIR", help="where to write (%(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="KEY", help="these experiments, such as figure-2"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are rough")
    parser.add_argument(
        "--jobs", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes, "
        "which change nothing but the time (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)s)")


def reproduce(arguments: argparse.Namespace) -> int:
    from quire_lab.reproduction import reproduce

    page = reproduce(
        Path(arguments.out),
        only=arguments.only,
        quick=arguments.quick,
        jobs=arguments.jobs,
        seed=arguments.seed,
        progress=_tell,
    )
    print(f"written: {page}")
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


COMMAND = Command("reproduce", ELSEWHERE["reproduce"].help, add_reproduce, reproduce)
