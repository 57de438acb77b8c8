"""What structured text costs: requests with a schema each beside the same ones without.

    python benchmarks/structured.py MODEL [--requests 64] [--tokens 64] [--schemas FILE]

Each schema asks for a list that does not end before the request does, of objects of its own. FILE
has a JSON object with a "schema" in each line, to be those objects instead. Both kinds take turns;
what is told is the ratio of their rates, the same by the processor time of the server and its
workers, which says more on a machine that others use, and what compiling takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from quire import LLM  # which lets idle threads sleep, as it does in a server
from quire.capabilities.grammar import Grammars
from quire.core.errors import RequestError
from quire.text.params import SamplingParams, StructuredOutputs
from quire.tools.doctor.machine import seconds_of_tree

_WORDS = ["name", "age", "city", "email", "price", "tags", "note", "status", "owner", "count"]
_KINDS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 24},
    {"type": "string"},
    {"type": "integer", "minimum": 0, "maximum": 9_999},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["low", "middle", "high"]},
    {"type": "array", "items": {"type": "string"}, "maxItems": 4},
]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schemas", type=Path)
    arguments = parser.parse_args()
    llm = LLM(arguments.model)
    compiler = llm.engine.input_processor.grammars
    rows = _schemas(arguments.schemas, arguments.requests, compiler)
    print(f"{len(rows)} requests of {arguments.tokens} tokens, a schema each")
    _tell_compiling(rows, compiler)
    ratios, by_processor = [], []
    for number in range(arguments.rounds + 1):
        gc.collect()  # else that comes in one of the rounds, and takes as long as it
        gc.freeze()
        first_seed = number * len(rows)  # other texts than in the round before
        free, cost = _rate(llm, [None] * len(rows), arguments.tokens, first_seed)
        bound, more = _rate(llm, rows, arguments.tokens, first_seed)
        if number:  # the first compiles and warms up
            ratios.append(bound / free)
            by_processor.append(cost / more)
            print(
                f"  free {free:8.1f} tokens/s {1e6 * cost:6.1f} us   "
                f"with schemas {bound:8.1f} {1e6 * more:6.1f}   {ratios[-1]:.3f} {cost / more:.3f}"
            )
    print(f"rate with schemas, of that without: {statistics.median(ratios):.3f}")
    print(f"by processor time: {statistics.median(by_processor):.3f}")


def _schemas(file: Path | None, count: int, compiler: Grammars) -> list[StructuredOutputs]:
    rng = random.Random(1)
    if file is None:
        items = (_schema(rng) for _ in iter(int, 1))
    else:
        items = (json.loads(line)["schema"] for line in file.read_text().splitlines())
    found: list[StructuredOutputs] = []
    for item in items:
        defs = {key: item[key] for key in ("$defs", "definitions") if key in item}
        asked = StructuredOutputs(json={"type": "array", "items": item, "minItems": 1_000, **defs})
        try:
            compiler.rules(SamplingParams(structured_outputs=asked))
        except RequestError:
            continue
        found.append(asked)
        if len(found) == count:
            break
    return found


def _schema(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(3, 9))
    properties = {name: rng.choice(_KINDS) for name in names}
    required = [name for name in names if rng.random() < 0.8]
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False}  # fmt: skip


def _rate(
    llm: LLM, asked: list[StructuredOutputs | None], tokens: int, first_seed: int
) -> tuple[float, float]:
    """Tokens a second, and the processor's seconds for one."""
    params = [
        SamplingParams(max_tokens=tokens, seed=seed, structured_outputs=one, ignore_eos=one is None)
        for seed, one in enumerate(asked, first_seed)
    ]
    prompts = [[2 + i, *range(3, 20)] for i in range(len(asked))]
    process = psutil.Process()
    started, spent = time.perf_counter(), seconds_of_tree(process)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    seconds, spent = time.perf_counter() - started, seconds_of_tree(process) - spent
    count = sum(len(each.outputs[0].token_ids) for each in outputs)
    return count / seconds, spent / count


def _tell_compiling(rows: list[StructuredOutputs], compiler: Grammars) -> None:
    times = []
    for number, asked in enumerate(rows):
        # Another text of the same schema, which is compiled afresh.
        schema = json.loads(str(asked.json)) | {"title": f"{number}"}
        fresh = SamplingParams(structured_outputs=StructuredOutputs(json=schema))
        started = time.perf_counter()
        compiler.rules(fresh)
        times.append(time.perf_counter() - started)
    _tell("compiling a schema", times)


def _tell(what: str, times: list[float]) -> None:
    p50, p90, p99 = (1e6 * float(np.percentile(times, q)) for q in (50, 90, 99))
    print(f"{what}: median {p50:.0f} us, 90 % {p90:.0f}, 99 % {p99:.0f}")


if __name__ == "__main__":
    main()
