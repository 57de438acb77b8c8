"""Flags of other servers: those that change nothing here, and those that have another name."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from quire.engine.config.neutral import COMMON, RARE, Neutral

logger = logging.getLogger(__name__)


_DRAFTS = "--speculative-config.num_speculative_tokens N"
_DRAFT_MODEL = "--speculative-config.method draft --speculative-config.model NAME"
_METHOD = "--speculative-config.method with auto, ngram, suffix or draft"
_BY_ITSELF = "--speculative-config alone: the engine adapts how many tokens it drafts"
INSTEAD: Mapping[str, str] = {
    "--override-pooler-config": "--pooler-config",
    **dict.fromkeys(("--speculative-model", "--spec-model"), _DRAFT_MODEL),  # vLLM's
    **dict.fromkeys(("--num-speculative-tokens", "--spec-tokens"), _DRAFTS),
    **dict.fromkeys(("--spec-method", "--spec-type"), _METHOD),
    "--ngram-prompt-lookup-max": "--speculative-config.prompt_lookup_max N",
    "--ngram-prompt-lookup-min": "--speculative-config.prompt_lookup_min N",
    "-sc": "--speculative-config",
    **dict.fromkeys(("-dp", "--data-parallel-size-local"), "quire deploy MODEL --replicas N"),
    **dict.fromkeys(
        ("--enable-expert-parallel", "-ep"),
        "--tensor-parallel-size alone: ranks divide each expert",
    ),
    "--kv-allocator": "quire simulate or quire plan, which compare with contiguous memory",
    "-t": "--threads N",  # llama.cpp's
    **dict.fromkeys(("-c", "--ctx-size"), "--max-model-len N"),
    **dict.fromkeys(("-np", "--parallel"), "--max-num-seqs N"),
    **dict.fromkeys(("--model-draft", "-md", "--hf-repo-draft", "-hfd"), _DRAFT_MODEL),
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), _DRAFTS),
    **dict.fromkeys(("--draft-min", "--draft-n-min", "--draft-p-min"), _BY_ITSELF),
}
"""Flags of other servers that have another name here, and what to write."""


def add_others_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of vLLM that the parser lacks, and that have a value which changes nothing here."""
    usable = [one for one in (*COMMON, *RARE) if one.values and _flag(one) not in INSTEAD]
    common = ", ".join(_flag(one) for one in usable if one in COMMON)
    group = parser.add_argument_group(
        "accepted as in vLLM",
        f"They ask for what Quire does anyway; a line in the log says why. {common}, and "
        f"{len(usable) - len(COMMON)} rarer ones.",
    )
    for neutral in usable:
        names: list[str] = [_flag(neutral)]
        given: dict[str, Any] = {"metavar": "VALUE"}
        if neutral.is_switch:
            names, given = [names[0], f"--no-{names[0][2:]}"], {"nargs": 0}
        group.add_argument(
            *names, action=_Note, const=neutral, default=argparse.SUPPRESS, help=argparse.SUPPRESS,
            **given,
        )  # fmt: skip


def _flag(neutral: Neutral) -> str:
    return f"--{neutral.name.replace('_', '-')}"


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
