"""``quire reproduce``: the PagedAttention paper's figures, beside simulated ones."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from quire.tools.commands.command import Command


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "All experiments take some minutes of two processors, --quick takes seconds; the page has "
        "each as soon as it is done."
    )
    parser.add_argument(
        "--out",
        default="reproduction",
        metavar="DIRECTORY",
        help="directory to write to (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY",
        help="run these experiments only: walk-through, articles, table-1, figure-2, "
        "figure-12-sharegpt, figure-12-alpaca, figure-13, figure-14, figure-15, figure-16, "
        "figure-17, figure-18b, figure-19, techniques",
    )
    parser.add_argument("--quick", action="store_true", help="a short run with rough figures")
    parser.add_argument(
        "--jobs", type=int, default=min(4, os.cpu_count() or 1), metavar="N", help="processes "
        "to use (default: %(default)s)",
    )  # fmt: skip
    text = "seed of all that is drawn (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=text)


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


COMMAND = Command(add_reproduce, reproduce)
