"""What the demonstration model's draft gives: a user alone, with and without, in turns.

    python benchmarks/draft_model.py [--rounds 8] [--temperature 0.7] [--threads 1] [--unit cpu]

Each row has so many drafts in every step; the last as many as the engine chooses. ``--unit cpu``
is for machines that others use: processor time of the engine's thread, by which the engine then
chooses, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from quire import LLM, SamplingParams
from quire.drafting import Speculation
from quire.protocol import TO_DRAFT
from quire.scheduling import Scheduler

COUNTS, TOKENS = (0, 1, 2, 3, 4, 6, 8), 200
TOPICS = ("list", "dict", "range", "open", "map", "print")


class Always(Speculation):
    """So many drafts in each step."""

    def __init__(self, count: int) -> None:
        super().__init__([], 1)
        self._count = count

    def propose(self, scheduler: Scheduler) -> None:
        """See ``Speculation``."""
        for group in scheduler.running:
            for branch in group.branches:
                if group.expanded and branch.num_pending == 1:
                    scheduler.propose(branch.seq_id, [TO_DRAFT] * self._count)


def serve(llm: LLM, params: SamplingParams, topic: str, clock: Callable[[], float]) -> list[float]:
    """Seconds of each step after the prompt's."""
    llm.engine.add_request("0", f"What is {topic}?", params)
    llm.engine.step()
    took = []
    while llm.engine.has_work:
        started = clock()
        llm.engine.step()
        took.append(clock() - started)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--unit", choices=("wall", "cpu"), default="wall")
    arguments = parser.parse_args()
    llm = LLM(
        threads=arguments.threads,
        enable_prefix_caching=False,
        speculative_config={"method": "draft"},
    )
    clock = time.perf_counter if arguments.unit == "wall" else time.thread_time
    llm.engine.clock = clock
    kinds = {f"{count}": Always(count) if count else None for count in COUNTS}
    kinds["as it chooses"] = llm.engine.speculation
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    steps: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(arguments.rounds + 1):
        params = SamplingParams(
            max_tokens=TOKENS, temperature=arguments.temperature, seed=number, ignore_eos=True
        )
        for name, speculation in kinds.items():
            llm.engine.speculation = speculation
            took = serve(llm, params, TOPICS[number % len(TOPICS)], clock)
            if number:  # the first warms up
                rates[name].append((TOKENS - 1) / sum(took))
                steps[name] += took
    print(f"{'drafts a step':>14} {'tokens a step':>14} {'a step, ms':>11} {'on / off':>9}")
    for name, own in rates.items():
        gain = statistics.median(a / b for a, b in zip(own, rates["0"], strict=True))
        tokens = arguments.rounds * (TOKENS - 1) / len(steps[name])
        print(f"{name:>14} {tokens:14.2f} {1e3 * statistics.median(steps[name]):11.3f} {gain:9.2f}")


if __name__ == "__main__":
    main()
