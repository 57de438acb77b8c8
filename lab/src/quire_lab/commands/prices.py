"""``--price``: what machines cost, which only the user can say."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from quire.core.errors import ConfigError


def add_price(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--price", action="append", metavar="NAME=DOLLARS", help="dollars per hour of a "
        "machine, such as h100=2; may be repeated. Without it, price_per_hour in the machine's "
        "JSON file counts; Quire knows no prices",
    )  # fmt: skip


def prices_of(arguments: argparse.Namespace, machines: Iterable[str]) -> dict[str, float]:
    """Prices by machine, in lower case. ConfigError for a wrong one, or of another machine."""
    prices: dict[str, float] = {}
    for text in arguments.price or ():
        name, _, dollars = text.rpartition("=")
        try:
            prices[name.lower()] = float(dollars)
        except ValueError:
            raise ConfigError(f"price must be NAME=DOLLARS, such as h100=2; got {text!r}") from None
        if not 0 < prices[name.lower()] < 1e9:
            raise ConfigError(f"price must be above 0 dollars an hour, got {text!r:.80}")
    known = dict.fromkeys(name.lower() for name in machines)
    for name in prices:
        if name not in known:
            raise ConfigError(f"price of {name!r}: not among the machines, {', '.join(known)}")
    return prices
