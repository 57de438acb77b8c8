"""What a block store gains after a restart, and what it costs while nothing is found in it.

    python benchmarks/store.py [MODEL] [--tokens 4096] [--kv-store DIR] [--options JSON]

Time to first token of the first request of a new process, which computes its prompt, and of the
same in the next process, which finds it in the store; round by round. Then the tokens a second of
two engines in one process, with a store and without one, that serve batches of prompts never seen
before, turn by turn: until the last answer, which is what clients see, and until all is written as
well. Beside them the seconds of processors, of this process and of the system for it; what the
system writes to the disk later is not among them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from common import flags_of, show

from quire import LLM, SamplingParams

BATCH, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 256, 64


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("model", nargs="?", help="directory or name (default: the demonstration)")
    parser.add_argument("--tokens", type=int, default=4096, help="of the prompt (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of (%(default)s)")
    parser.add_argument("--kv-store", help="directory in which to make stores")
    parser.add_argument("--options", type=json.loads, default={}, help="the engine's, as JSON")
    parser.add_argument("--first-token", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments = parser.parse_args()
    if arguments.first_token is not None:
        print(json.dumps(first_token(arguments)))
        return
    rounds = [restarted(arguments) for _ in range(arguments.rounds)]
    computed, fetched = (statistics.median(times) for times in zip(*rounds, strict=True))
    results: dict[str, Any] = {
        "seconds_to_first_token_computed": computed,
        "seconds_to_first_token_fetched": fetched,
        "fetched_to_computed": statistics.median(b / a for a, b in rounds),
        **with_to_without(arguments),
    }
    show(results, arguments.json)


def restarted(arguments: argparse.Namespace) -> tuple[float, float]:
    """Seconds to the first token of a prompt: computed, and after a restart."""
    with tempfile.TemporaryDirectory(dir=arguments.kv_store) as store:
        command = [sys.executable, __file__, *sys.argv[1:], "--first-token", store]
        computed, fetched = (
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        )
    assert computed["fetched_tokens"] == 0
    assert fetched["fetched_tokens"] >= arguments.tokens - 16
    return computed["seconds"], fetched["seconds"]


def first_token(arguments: argparse.Namespace) -> dict[str, float]:
    llm = make_llm(arguments, arguments.first_token)
    (prompt,) = random_prompts(llm, 0, 1, arguments.tokens)
    (output,) = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    llm.engine.close()
    metrics = output.metrics
    return {"seconds": metrics.ttft or 0.0, "fetched_tokens": metrics.fetched_tokens}


def with_to_without(arguments: argparse.Namespace) -> dict[str, float]:
    """Ratios of throughput, and of the processors' seconds for the same."""
    with tempfile.TemporaryDirectory(dir=arguments.kv_store) as store:
        engines = [make_llm(arguments, None), make_llm(arguments, store)]
        for llm in engines:
            serve_batch(llm, 4 * arguments.rounds)
        rounds = []
        for number in range(4 * arguments.rounds):
            turns = [serve_batch(llm, number) for llm in engines[:: 1 if number % 2 else -1]]
            rounds.append(turns[:: 1 if number % 2 else -1])
        engines[1].engine.close()

    def ratio(of: str) -> float:
        return statistics.median(without[of] / with_it[of] for without, with_it in rounds)

    return {
        "with_to_without_store_until_answered": ratio("answered"),
        "with_to_without_store_until_written": ratio("written"),
        "processor_seconds_with_to_without": 1 / ratio("processor"),
    }


def serve_batch(llm: LLM, number: int) -> dict[str, float]:
    """Seconds until all is answered, until all is written, and those of processors."""
    prompts = random_prompts(llm, number, BATCH, PROMPT_TOKENS)
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0.0)
    start, before = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    answered = time.perf_counter() - start
    if llm.engine.capabilities.store is not None:
        llm.engine.capabilities.store.flush()
    assert not any(output.metrics.cached_tokens for output in outputs)
    written, processor = time.perf_counter() - start, time.process_time() - before
    return {"answered": answered, "written": written, "processor": processor}


def make_llm(arguments: argparse.Namespace, store: str | None) -> LLM:
    longest = max(arguments.tokens, PROMPT_TOKENS + OUTPUT_TOKENS) + 16
    pool = {"max_model_len": longest, "kv_cache_memory_bytes": "1GiB"}
    options = {**pool, "kv_store": store, **arguments.options}
    return LLM(arguments.model, **options)


def random_prompts(llm: LLM, seed: int, count: int, tokens: int) -> list[list[int]]:
    rng, vocabulary = random.Random(seed), llm.engine.input_processor.vocab_size
    return [[rng.randrange(3, vocabulary) for _ in range(tokens)] for _ in range(count)]


if __name__ == "__main__":
    main()
