"""Starts ``quire serve`` where ``llama-server`` was to be started, with the demonstration model.

Its flags are written in ours, as docs/howto/coming-from.md says. One that asks for a part of
llama.cpp that is not here is left out, so that a test fails of what it tests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quire.models.demo import DEMO_DRAFT, DEMO_MODEL

_LONGEST = 2048  # of the demonstration model
_OURS = {
    "port": "--port",
    "host": "--host",
    "seed": "--seed",
    "threads": "--threads",
    "api_key": "--api-key",
    "parallel": "--max-num-seqs",
    "batch_size": "--max-num-batched-tokens",
    "chat_template": "--chat-template",
    "chat_template_file": "--chat-template",
    "cors_origins": "--allowed-origins",
}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in [*_OURS, "alias", "ctx_size", "model_draft", "pooling", "reasoning", "temp"]:
        parser.add_argument("--" + name.replace("_", "-"))
    parser.add_argument("--kv-unified", action="store_true")
    parser.add_argument("--n-predict", type=int, default=-1)
    parser.add_argument("--spec-draft-n-max", default="8")
    parser.set_defaults(parallel="4", cors_origins="*")  # as there
    given, _ = parser.parse_known_args()
    if given.chat_template_file is not None:
        given.chat_template_file = str(Path(given.chat_template_file).resolve())
    flags = [word for name, value in _flags(given) for word in (name, value)]
    # Served by a path, a model has that name, and another that a client gives is no error.
    os.chdir(tempfile.mkdtemp(prefix="as-llama-server-"))
    model = Path((given.alias or "model").partition(",")[0])
    model.symlink_to(DEMO_MODEL)
    os.execv(sys.executable, [sys.executable, "-m", "quire", "serve", str(model), *flags])


def _flags(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for name, ours in _OURS.items():
        if getattr(given, name) is not None:
            yield ours, getattr(given, name)
    yield "--kv-cache-memory-bytes", "64MiB"
    yield "--shutdown-timeout", "0"
    defaults: dict[str, float] = {"temperature": float(given.temp)}
    if given.n_predict > 0:
        defaults["max_new_tokens"] = given.n_predict
    yield "--override-generation-config", json.dumps(defaults)
    if given.ctx_size is not None:
        slots = 1 if given.kv_unified else int(given.parallel)
        yield "--max-model-len", str(min(int(given.ctx_size) // slots, _LONGEST))
    if given.pooling is not None:
        yield "--pooler-config.pooling_type", given.pooling.upper()
    if given.reasoning in ("on", "off"):
        thinks = "true" if given.reasoning == "on" else "false"
        yield "--default-chat-template-kwargs.enable_thinking", thinks
    if given.model_draft is not None:
        yield "--speculative-config.method", "draft"
        yield "--speculative-config.model", str(DEMO_DRAFT)
        yield "--speculative-config.num_speculative_tokens", given.spec_draft_n_max


if __name__ == "__main__":
    main()
