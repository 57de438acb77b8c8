"""Flags of others: some ask for what is so anyway, and pass; others are written otherwise here."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from quire.engine.config.neutral import COMMON, RARE

logger = logging.getLogger(__name__)


_DRAFTS = "--speculative-config.num_speculative_tokens N"
_DRAFT_MODEL = "--speculative-config.method draft --speculative-config.model NAME"
_METHOD = "--speculative-config.method with auto, ngram, suffix or draft"
_BY_ITSELF = "--speculative-config alone: how far drafts go is decided by what they turn out to be"
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
"""Flags of others that ask for what is told otherwise here, and what to write."""


def add_others_flags(parser: argparse.ArgumentParser) -> None:
    """All of them that the parser does not have itself, and that can be given a value here."""
    group = parser.add_argument_group("of vLLM", "They ask for what is so anyway.")
    for neutral in (*COMMON, *RARE):
        flag = f"--{neutral.name.replace('_', '-')}"
        if not neutral.values or flag in INSTEAD:
            continue
        names: list[str] = [flag]
        given: dict[str, Any] = {"metavar": "TEXT"}
        if neutral.is_switch:
            names, given = [flag, f"--no-{flag[2:]}"], {"nargs": 0}
        help_text = neutral.why.replace("%", "%%") if neutral in COMMON else argparse.SUPPRESS
        group.add_argument(
            *names, action=_Note, const=neutral, default=argparse.SUPPRESS, help=help_text, **given
        )


class _Note(argparse.Action):
    """Says why there is nothing to do."""

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
