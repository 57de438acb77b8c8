"""What the scheduler and the allocator cost, without a model: microseconds per operation.

    python benchmarks/scheduler.py

Decode: one schedule + update with every sequence growing by one token, per sequence. Admission: a
4,096-token prompt without and with a full prefix hit. Fork: one sequence of 4,096 tokens into 8.
Beams: one schedule + update of a request with six. Import: quire.core.memory in a new process, less
what starting Python itself takes.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from quire.capabilities.beams import BeamSearch
from quire.core.memory import Demand, PagedAllocator
from quire.core.protocol import Outcome, Progress, Request, Sample, Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.text.params import SamplingParams

BLOCK_SIZE = 16
PROMPT = 4096


def ignore(progress: Progress) -> bool:
    """No text ends for a reason of its own."""
    return False


def answer(step: Step) -> StepResult:
    outcome = Outcome([Sample(7)])
    return StepResult({chunk.seq_id: outcome for chunk in step.chunks if chunk.readout})


def request(name: str, prompt: tuple[int, ...], max_tokens: int) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens), max_tokens, seed=0)


def decode(running: int, steps: int = 100) -> float:
    """Median microseconds per sequence of schedule + update."""
    scheduler = Scheduler(
        PagedAllocator(running * 64, BLOCK_SIZE), BatchLimits(running, running * 130)
    )
    for i in range(running):
        scheduler.add(request(str(i), tuple((i * 31 + j) % 5000 for j in range(100)), 900))
    times = []
    for number in range(steps + 5):
        start = time.perf_counter()
        step = scheduler.schedule(float(number))
        scheduled = time.perf_counter() - start
        result = answer(step)
        start = time.perf_counter()
        scheduler.update(step, result, number + 0.5, ignore)
        times.append(scheduled + time.perf_counter() - start)
    return statistics.median(times[5:]) * 1e6 / running


def drafted(running: int, steps: int = 100) -> float:
    """Median microseconds per confirmed token, where 0 to 4 of 4 drafts are right at random."""
    rng = random.Random(0)
    scheduler = Scheduler(
        PagedAllocator(running * 64, BLOCK_SIZE), BatchLimits(running, running * 130)
    )
    groups = [scheduler.add(request(str(i), (i, *range(99)), 900)) for i in range(running)]
    times = []
    for number in range(steps + 5):
        start = time.perf_counter()
        for group in groups:
            scheduler.propose(group.branches[0].seq_id, (7, 7, 7, 7))
        step = scheduler.schedule(float(number))
        scheduled = time.perf_counter() - start
        outcomes = {
            chunk.seq_id: Outcome([Sample(7)] * (1 + rng.randint(0, len(chunk.drafts))))
            for chunk in step.chunks
            if chunk.readout
        }
        tokens = sum(len(outcome.tokens) for outcome in outcomes.values())
        start = time.perf_counter()
        scheduler.update(step, StepResult(outcomes), number + 0.5, ignore)
        times.append((scheduled + time.perf_counter() - start) / max(1, tokens))
    return statistics.median(times[5:]) * 1e6


def admission(hit: bool) -> float:
    """Median microseconds of the schedule call that admits the prompt and plans all of it."""
    times = []
    scheduler = Scheduler(
        PagedAllocator(4 * PROMPT // BLOCK_SIZE, BLOCK_SIZE), BatchLimits(4, PROMPT)
    )
    for number in range(21):
        salt = 0 if hit else number
        prompt = tuple((salt * 7919 + j) % 5000 for j in range(PROMPT))
        scheduler.add(request(str(number), prompt, 1))
        start = time.perf_counter()
        step = scheduler.schedule(float(number))
        times.append(time.perf_counter() - start)
        scheduler.update(step, answer(step), number + 0.5, ignore)
    return statistics.median(times[1:]) * 1e6


def fork(children: int = 8) -> float:
    """Median microseconds of forking a 4,096-token sequence into ``children`` and freeing them."""
    allocator = PagedAllocator(2 * PROMPT // BLOCK_SIZE, BLOCK_SIZE)
    allocator.admit(0, Demand(PROMPT))
    allocator.append({0: PROMPT})
    times = []
    for _ in range(50):
        start = time.perf_counter()
        for child in range(1, children + 1):
            allocator.fork(0, child)
        times.append(time.perf_counter() - start)
        for child in range(1, children + 1):
            allocator.free(child)
    return statistics.median(times) * 1e6


def beam_step(width: int = 6) -> float:
    """Median microseconds of schedule + update while all beams live and split."""
    scheduler = Scheduler(PagedAllocator(1024, BLOCK_SIZE), BatchLimits(width, 256))
    scheduler.begin_search = BeamSearch
    params = SamplingParams(use_beam_search=True, n=width, max_tokens=300, ignore_eos=True)
    scheduler.add(Request("beams", tuple(range(100)), params, 300, seed=0))
    times = []
    for number in range(200):
        start = time.perf_counter()
        step = scheduler.schedule(float(number))
        scheduled = time.perf_counter() - start
        result = StepResult()
        for i, chunk in enumerate(step.chunks):  # the best beam of each step splits
            count = 0 if chunk.readout is None else chunk.readout.candidates
            found = [(token, -0.1 * token - i) for token in range(count)]
            result.outcomes[chunk.seq_id] = Outcome(candidates=found)
        start = time.perf_counter()
        scheduler.update(step, result, number + 0.5, ignore)
        times.append(scheduled + time.perf_counter() - start)
    return statistics.median(times[5:]) * 1e6


def import_memory() -> float:
    """Microseconds of the import, best of ten processes."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    rounds = [(seconds("import quire.core.memory"), seconds("pass")) for _ in range(10)]
    return (min(a for a, _ in rounds) - min(b for _, b in rounds)) * 1e6


def main() -> None:
    rows: list[tuple[str, Callable[[], float]]] = [
        *((f"decode, {n} running, per sequence", partial(decode, n)) for n in (16, 64, 256, 1024)),
        *((f"decode, {n} running, 4 drafts, per token", partial(drafted, n)) for n in (64, 256)),
        ("admission of 4,096 tokens, no hit", lambda: admission(hit=False)),
        ("admission of 4,096 tokens, all cached", lambda: admission(hit=True)),
        ("fork of 4,096 tokens into 8", fork),
        ("step of 6 beams", beam_step),
        ("import quire.core.memory", import_memory),
    ]  # fmt: skip
    for name, measure in rows:
        print(f"{name:40} {measure():8.2f} us")


if __name__ == "__main__":
    main()
