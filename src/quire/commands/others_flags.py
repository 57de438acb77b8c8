"""Flags of others: some ask for what is so anyway, and pass; others are written otherwise here."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


class _Flag(NamedTuple):
    """values: that it may have; None: it is a switch."""

    name: str
    why: str
    values: tuple[str, ...] | None = None


_ONE = ("1",)
_TEXTS = "what requests and answers say is never logged; each request has a line"
_BOTH = "every model that has a head generates texts, and all of them give embeddings"
_ALIKE = "all models are read and run in one way"
_FLAGS = (
    _Flag("pipeline-parallel-size", "ranks divide every layer", _ONE),
    _Flag("data-parallel-size", "one engine serves; quire deploy MODEL --replicas N starts N of "
          "them", _ONE),
    _Flag("api-server-count", "one process serves", _ONE),
    _Flag("disable-frontend-multiprocessing", "one process serves"),
    _Flag("disable-custom-all-reduce", "ranks add up in one way"),
    _Flag("enable-chunked-prefill", "long prompts are always computed in chunks"),
    _Flag("num-scheduler-steps", "each step is planned by itself", _ONE),
    _Flag("use-v2-block-manager", "there is one block manager"),
    _Flag("cpu-offload-gb", "weights are where they are computed with", ("0",)),
    _Flag("kv-offloading-backend", "blocks are kept in main memory in one way", ("native",)),
    _Flag("lora-dtype", "adapters are kept in the model's dtype", ("auto",)),
    _Flag("trust-remote-code", "no code that comes with a model is run; one that needs it is "
          "refused as it is loaded"),
    _Flag("load-format", "weights are read from safetensors or GGUF files",
          ("auto", "safetensors", "gguf")),
    _Flag("tokenizer-mode", "a tokenizer is read as its files say", ("auto", "hf")),
    _Flag("config-format", _ALIKE, ("auto", "hf")),
    _Flag("model-impl", _ALIKE, ("auto",)),
    _Flag("task", _BOTH, ("auto", "generate", "embed", "embedding", "score")),
    _Flag("runner", _BOTH, ("auto", "generate", "pooling")),
    _Flag("convert", _BOTH, ("auto", "none", "embed")),
    _Flag("response-role", "answers are the assistant's", ("assistant",)),
    _Flag("chat-template-content-format", "messages reach a template as it takes them",
          ("auto", "string")),
    _Flag("enable-request-id-headers", "every answer has an x-request-id"),
    _Flag("enable-offline-docs", "/docs needs no network"),
    _Flag("enable-server-load-tracking", "/metrics tells the load"),
    _Flag("disable-log-requests", _TEXTS),
    _Flag("enable-log-requests", _TEXTS),
    _Flag("disable-log-stats", "statistics are in /metrics, not in the log"),
)  # fmt: skip

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
    "-t": "--threads N",  # llama.cpp's
    **dict.fromkeys(("-c", "--ctx-size"), "--max-model-len N"),
    **dict.fromkeys(("-np", "--parallel"), "--max-num-seqs N"),
    **dict.fromkeys(("--model-draft", "-md", "--hf-repo-draft", "-hfd"), _DRAFT_MODEL),
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), _DRAFTS),
    **dict.fromkeys(("--draft-min", "--draft-n-min", "--draft-p-min"), _BY_ITSELF),
}
"""Flags of others that ask for what is told otherwise here, and what to write."""


def add_others_flags(parser: argparse.ArgumentParser) -> None:
    """All of them that the parser does not have itself."""
    group = parser.add_argument_group("of vLLM", "They ask for what is so anyway.")
    for flag in _FLAGS:
        values: dict[str, Any] = {"metavar": "TEXT"} if flag.values else {"nargs": 0}
        group.add_argument(
            f"--{flag.name}", action=_Note, const=flag, default=argparse.SUPPRESS, help=flag.why,
            **values,
        )  # fmt: skip


class _Note(argparse.Action):
    """Says why there is nothing to do."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        flag: _Flag = self.const
        if flag.values and values not in flag.values:
            allowed = " or ".join(flag.values)
            parser.error(f"{option_string} may only be {allowed}, not {values}: {flag.why}")
        logger.info("%s changes nothing: %s", option_string, flag.why)
