"""Flags of other servers that change nothing here: accepted, with a line in the log."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from quire.engine.config.neutral import ANY, COMMON, Neutral
from quire.tools.commands.others import LLAMA_SERVER, NEUTRAL, answers_to, flag_of

logger = logging.getLogger(__name__)


def add_others_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that the parser lacks, and that have a value which changes nothing here."""
    refused = {flag_of(one) for one in NEUTRAL if answers_to(flag_of(one))}
    usable = [one for one in NEUTRAL if one.values and flag_of(one) not in refused]
    common = ", ".join(flag_of(one) for one in usable if one in COMMON)
    group = parser.add_argument_group(
        "accepted as in vLLM and llama.cpp",
        f"They ask for what Quire does anyway; a line in the log says why. {common}, and "
        "rarer ones.",
    )
    for neutral in usable:
        names = [flag_of(neutral)]
        if neutral.is_switch:
            names += [f"--no-{names[0][2:]}"]
        _add(group, names, neutral)
    for why, text in LLAMA_SERVER.same.items():
        for name in (one for one in text.split() if one.startswith("-")):
            flag, value, allowed = name.partition("=")
            values = (*allowed.split("|"),) if allowed else (ANY,)
            _add(group, [flag], Neutral(flag, why, values if value else (True, False)))


def _add(group: Any, names: list[str], neutral: Neutral) -> None:
    given: dict[str, Any] = {"nargs": 0} if neutral.is_switch else {"metavar": "VALUE"}
    group.add_argument(
        *names, action=_Note, const=neutral, default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        **given,
    )  # fmt: skip


class _Note(argparse.Action):
    """Logs why a flag changes nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        neutral, spelled = self.const, option_string or ""
        value: object = not spelled.startswith("--no-")
        if not neutral.is_switch:
            value = next((one for one in neutral.values if str(one) == values), values)
        if not neutral.takes(value):
            parser.error(neutral.refusal(spelled, value))
        logger.info("%s changes nothing: %s", spelled, neutral.why)
