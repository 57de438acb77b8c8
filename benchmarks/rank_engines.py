"""An engine of several ranks beside one of one rank with as many threads.

    python benchmarks/rank_engines.py [MODEL] [--ranks 2] [--rounds 5]

Each in a process of its own, in turn, so that other work on the machine slows both; tokens a second
of each, the best of all rounds, and their ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

_TOKENS = 64
_SIZES = (1, 8)  # sequences at once
_PROMPT = list(range(20, 148))


def _engine(line: Connection, options: dict[str, Any]) -> None:
    """Serve so many sequences, and tell the seconds, for as long as somebody asks."""
    from quire import LLM, SamplingParams

    llm = LLM(**options)
    params = SamplingParams(max_tokens=_TOKENS, temperature=0.0, ignore_eos=True)
    while size := line.recv():
        prompts = [[1 + row, *_PROMPT] for row in range(size)]
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        line.send(time.perf_counter() - begin)
    llm.close()


def _begin(options: dict[str, Any]) -> Connection:
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=_engine, args=(theirs, options)).start()
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    common = {"model": asked.model, "kv_cache_memory_bytes": "64MiB", "max_model_len": 512}
    engines = {
        "one rank": _begin({**common, "threads": asked.ranks}),
        f"{asked.ranks} ranks": _begin(
            {**common, "threads": 1, "tensor_parallel_size": asked.ranks}
        ),
    }
    for size in _SIZES:
        best = dict.fromkeys(engines, float("inf"))
        for turn in range(asked.rounds + 1):  # the first one warms up
            for name, line in engines.items():
                line.send(size)
                seconds = line.recv()
                if turn:
                    best[name] = min(best[name], seconds)
        rates = {name: size * _TOKENS / seconds for name, seconds in best.items()}
        one, several = rates.values()
        told = ", ".join(f"{name} {rate:,.1f} tok/s" for name, rate in rates.items())
        print(f"{size} at once: {told}; {several / one:.2f}x")
    for line in engines.values():
        line.send(0)


if __name__ == "__main__":
    main()
