"""What the demonstration model's draft gives: a user alone, with and without, in turns.

    python benchmarks/draft_model.py [--rounds 8] [--temperature 0.7] [--threads 1] [--unit cpu]

Each row has so many drafts in every step; the last as many as the engine chooses, which it has
learned from a round that is not counted. Answers end by themselves; of each, the median of all
rounds counts. ``--unit cpu`` is for machines that others use: processor time of the engine's
thread, by which the engine then chooses, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from quire import LLM, SamplingParams
from quire.capabilities.speculation import Speculation
from quire.core.protocol import TO_DRAFT
from quire.core.scheduling import Scheduler
from quire.engine.capabilities import Capabilities

COUNTS, TOKENS = (0, 1, 2, 3, 4, 6, 8), 300
QUESTIONS = (
    "What does `itertools.chain` do?",
    "Explain the with statement.",
    "What does `os.path.join` do?",
    "What is the module `json` for?",
    "Explain the try statement.",
    "What does `str.split` do?",
    "What does `random.shuffle` do?",
    "What is `collections.OrderedDict`?",
)


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


def serve(
    llm: LLM, params: SamplingParams, question: str, clock: Callable[[], float]
) -> tuple[float, int]:
    """Seconds of an answer after its first token, and steps."""
    asked = llm.engine.input_processor.begin_chat([{"role": "user", "content": question}]).token_ids
    llm.engine.add_request("0", asked, params)
    llm.engine.step()
    started, steps = clock(), 0
    while llm.engine.has_work:
        llm.engine.step()
        steps += 1
    return clock() - started, steps


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
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
    kinds["as it chooses"] = llm.engine.capabilities.speculation
    took: dict[str, list[list[float]]] = {name: [[] for _ in QUESTIONS] for name in kinds}
    steps = dict.fromkeys(kinds, 0)
    for turn in range(arguments.rounds + 1):
        for number, question in enumerate(QUESTIONS):
            params = SamplingParams(
                max_tokens=TOKENS, temperature=arguments.temperature, seed=number
            )
            for name, speculation in kinds.items():
                llm.engine.use(Capabilities(speculation=speculation))
                seconds, count = serve(llm, params, question, clock)
                if turn:  # the first warms up
                    took[name][number].append(seconds)
                    steps[name] += count
    print(f"{'drafts a step':>14} {'tokens a step':>14} {'a step, ms':>11} {'on / off':>9}")
    for name, seconds in took.items():
        all_of, plain = (sum(map(statistics.median, own)) for own in (seconds, took["0"]))
        tokens, step = steps["0"] / steps[name], all_of * arguments.rounds / steps[name]
        print(f"{name:>14} {tokens:14.2f} {1e3 * step:11.3f} {plain / all_of:9.2f}")


if __name__ == "__main__":
    main()
