"""One streaming session that goes on and on: do its blocks and its steps stay as they are?

    python benchmarks/session.py [--tokens 120000] [--model DIR]

Each round appends 3,900 tokens and generates 100. Told every few rounds: the tokens of the session
so far, the KV blocks it holds, the median time of a step that decodes one token, the rate of
prefill, and the memory of the process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import psutil

from quire import LLM, SamplingParams

APPENDED, GENERATED = 3900, 100
ROUNDS_A_LINE = 3


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=120_000)
    parser.add_argument("--model")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--attention-sinks", type=int, default=4)
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        window=arguments.window,
        attention_sinks=arguments.attention_sinks,
        max_num_seqs=1,
        max_num_batched_tokens=512,
    )
    print(llm.capacity.describe())
    params = SamplingParams(temperature=1.0, seed=0, max_tokens=GENERATED, ignore_eos=True)
    text = llm.engine.input_processor.tokenizer.encode("The river rose in the night. " * APPENDED)
    process = psutil.Process()
    print(f"{'tokens':>10} {'blocks':>7} {'decode ms':>10} {'prefill tok/s':>14} {'MiB':>7}")
    with llm.open_session() as session:
        allocator = llm.engine.scheduler.allocator
        total = lines = 0
        decodes: list[float] = []
        prefills: list[float] = []
        while total < arguments.tokens:
            session.append(text[:APPENDED])
            started = time.perf_counter()
            times = [time.perf_counter() for _ in session.stream(params)]
            prefills.append(APPENDED / (times[0] - started))
            decodes += [later - sooner for sooner, later in pairwise(times)]
            total += APPENDED + GENERATED
            lines += 1
            if lines % ROUNDS_A_LINE == 0:
                usage = allocator.usage()
                held = (usage.capacity - usage.cached - usage.free) // allocator.block_size
                print(
                    f"{total:10,} {held:7} {statistics.median(decodes) * 1e3:10.2f} "
                    f"{statistics.median(prefills):14,.0f} {process.memory_info().rss >> 20:7}"
                )
                decodes, prefills = [], []


if __name__ == "__main__":
    main()
