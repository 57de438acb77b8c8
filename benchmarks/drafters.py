"""What guessing costs without a model: microseconds a sequence and step, whole calls of Python.

    python benchmarks/drafters.py [--steps 2000]

Texts are random, drawn as words are (a few tokens make up most of it), or say the same again and
again with small changes. The memory for outputs served before is full of texts of the same kind.
"begin" is the first call, which indexes the prompt. All is done five times, for others whose
outputs are as many, and of each step the least counts: what remains of a machine that does other
things too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from quire.capabilities.speculation import Drafter
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.capabilities.speculation.own_texts import NgramDrafter
from quire.capabilities.speculation.prediction import PredictionDrafter
from quire.capabilities.speculation.suffix import SuffixDrafter
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence
from quire.text.params import SamplingParams

VOCABULARY, OUTPUT, MOST, ROUNDS = 50_000, 400, 4_000, 5
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(5, 2),
    "suffix": lambda: SuffixDrafter(SpeculativeConfig()),
    "prediction": PredictionDrafter,
}


def text_of(kind: str, length: int, rng: random.Random) -> list[int]:
    if kind == "random":
        return [rng.randrange(VOCABULARY) for _ in range(length)]
    if kind == "words":  # Zipf's law
        return [int(VOCABULARY ** rng.random()) - 1 for _ in range(length)]
    phrase = [rng.randrange(VOCABULARY) for _ in range(200)]
    return [rng.randrange(99) if rng.random() < 0.02 else phrase[i % 200] for i in range(length)]


def sequence_of(
    number: int, prompt: list[int], expected: list[int], salt: str
) -> tuple[Request, Sequence]:
    tokens, params = tuple(prompt), SamplingParams()
    facts = {"prediction": tuple(expected), "cache_salt": salt}
    return Request(f"{number}", tokens, params, MOST, 0, **facts), Sequence(number, 0, tokens)


def fill(drafter: Drafter, kind: str, rng: random.Random) -> None:
    """Serve outputs until what holds them is full."""
    for number in range(10_000):
        request, sequence = sequence_of(-1 - number, [1], [], f"{number % ROUNDS}")
        sequence.token_ids.extend(text_of(kind, OUTPUT, rng))
        drafter.propose(request, sequence, 1)
        drafter.close(sequence.seq_id)


def times(drafter: Drafter, kind: str, length: int, steps: int, salt: str) -> list[float]:
    """Of each call, the first one with the prompt."""
    rng = random.Random(length)
    prompt = text_of(kind, length, rng)
    came = [rng.randrange(99) if rng.random() < 0.05 else token for token in prompt[: 2 * steps]]
    came += text_of(kind, steps + 20, rng)
    request, sequence = sequence_of(length, prompt, prompt, salt)
    took, at = [], 0
    while len(took) < steps and sequence.num_output_tokens < MOST - 20:
        started = time.perf_counter()
        proposal = drafter.propose(request, sequence, 16)
        took.append(1e6 * (time.perf_counter() - started))
        drafts, right = () if proposal is None else proposal.tokens, 0
        while right < len(drafts) and drafts[right] == came[at + right]:
            right += 1
        sequence.token_ids.extend(came[at : at + right + 1])
        at = (at + right + 1) % (len(came) - 20)
    drafter.close(sequence.seq_id)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    print(f"{'':31} {'median':>8} {'99 %':>8} {'worst':>8} {'begin':>10}")
    for name, make in DRAFTERS.items():
        for kind in ("random", "words", "repetitive"):
            drafter = make()
            if name == "suffix":
                fill(drafter, kind, random.Random(0))
            for length in (1_000, 8_000, 32_000):
                rounds = [times(drafter, kind, length, steps, f"{i}") for i in range(ROUNDS)]
                begin, *took = map(min, zip(*rounds, strict=False))
                figures = statistics.median(took), statistics.quantiles(took, n=100)[-1], max(took)
                told = " ".join(f"{figure:8.2f}" for figure in figures)
                print(f"{name:11} {kind:11} {length:7,} {told} {begin:10.0f}", flush=True)


if __name__ == "__main__":
    main()
