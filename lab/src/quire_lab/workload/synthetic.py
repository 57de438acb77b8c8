"""Workloads drawn at random: arrivals, lengths, what prompts share. One seed, one workload."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, repeat
from random import Random
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.engine.traces.request import MOST_TOKENS, Segment, TraceRequest


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens, at least 1.

    kind: fixed (``mean``), uniform (``mean`` ± ``spread``), normal (``spread`` is the standard
        deviation) or lognormal (``spread`` is the standard deviation of the logarithm).
    """

    kind: str
    mean: float
    spread: float = 0.0

    def draw(self, random: Random) -> int:
        if self.kind == "fixed":
            return round(self.mean)
        if self.kind == "uniform":
            return random.randint(round(self.mean - self.spread), round(self.mean + self.spread))
        if self.kind == "normal":
            value = random.gauss(self.mean, self.spread)
        else:
            location = math.log(self.mean) - self.spread**2 / 2  # so that the mean is the mean
            value = random.lognormvariate(location, self.spread)
        return max(1, min(MOST_TOKENS, round(value)))

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Lengths by "512", "100-500", "normal:512:100", "lognormal:512:0.8" (mean and spread)."""
        number = r"(\d+(?:\.\d+)?)"
        lengths = None
        if match := re.fullmatch(r"(\d+)", text):
            lengths = cls("fixed", int(match[1]))
        elif match := re.fullmatch(r"(\d+)-(\d+)", text):
            low, high = int(match[1]), int(match[2])
            lengths = cls("uniform", (low + high) / 2, (high - low) / 2)
        elif match := re.fullmatch(rf"(normal|lognormal):{number}:{number}", text):
            lengths = cls(match[1], float(match[2]), float(match[3]))
        if lengths is None or lengths.spread < 0 or not 1 <= lengths.mean <= MOST_TOKENS:
            raise ConfigError(
                f"not a distribution of lengths: {text!r} (examples: 512, 100-500, "
                f"normal:512:100, lognormal:512:0.8; tokens from 1 to {MOST_TOKENS:,})"
            )
        if lengths.kind == "uniform" and lengths.mean - lengths.spread < 1:
            raise ConfigError(f"lengths must be at least 1, got {text!r}")
        return lengths


DATASETS: Mapping[str, tuple[Lengths, Lengths]] = {
    # Means in and out from figure 11 of the PagedAttention paper. It prints no spreads; these
    # are our reading of its histograms.
    "sharegpt": (Lengths("lognormal", 161, 1.1), Lengths("lognormal", 338, 0.9)),
    "alpaca": (Lengths("lognormal", 19, 0.6), Lengths("lognormal", 58, 0.9)),
}


class Library(NamedTuple):
    """Documents that prompts quote, the n-th of them 1 / n as often as the first.

    quoted: how many each conversation begins with, none of them twice.
    """

    num_documents: int
    lengths: Lengths
    quoted: int

    def quotes(self, seed: int) -> Iterator[tuple[Segment, ...]]:
        """The quotes of one conversation after the other, without end."""
        random = Random(seed)
        sizes = [self.lengths.draw(random) for _ in range(self.num_documents)]
        numbers = range(self.num_documents)
        weights = list(accumulate(1 / (number + 1) for number in numbers))
        while True:
            found: dict[int, None] = {}  # in the order in which they were found
            while len(found) < self.quoted:
                found.setdefault(random.choices(numbers, cum_weights=weights)[0])
            yield tuple(Segment(f"document {number}", sizes[number]) for number in found)


@dataclass(frozen=True)
class Synthetic:
    """A workload by its description; iterating draws it, the same one each time.

    rate: requests per second; for chats, conversations per second. None: all arrive at 0.
    burstiness: shape of the gamma distribution of the times between arrivals. 1 is a Poisson
        process, less is burstier, more is steadier; vLLM's --burstiness.
    shared_prefix: tokens that all prompts begin with, a system prompt say.
    library: what conversations quote after that, as where documents are looked up (RAG).
    agents: conversations that begin at once, with one text: a task that several take up.
    turns: answers in a conversation. A turn's prompt is all before it and the user's new words.
    think_seconds: mean time from one turn's arrival to the next one's.
    """

    num_requests: int
    input_lengths: Lengths
    output_lengths: Lengths
    rate: float | None = None
    burstiness: float = 1.0
    n: int = 1
    beam_search: bool = False
    shared_prefix: int = 0
    library: Library | None = None
    agents: int = 1
    turns: int = 1
    think_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "n", "turns", "agents"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.shared_prefix <= MOST_TOKENS:
            raise ConfigError(f"shared_prefix must be from 0 to {MOST_TOKENS:,} tokens")
        for name in ("rate", "burstiness", "think_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be above 0, got {value}")

    @property
    def shares_prefixes(self) -> bool:
        alone = self.library is None and self.turns == self.agents == 1
        return self.shared_prefix > 0 or not alone

    def __iter__(self) -> Iterator[TraceRequest]:
        """Requests in order of arrival. Keeps one entry for every conversation under way."""
        random = Random(self.seed)
        arrivals = arrival_times(Random(self.seed + 1), self.rate, self.burstiness)
        coming: list[tuple[float, int, int, tuple[Segment, ...]]] = []  # time, chat, turn, history
        beginning: tuple[Segment, ...] = ()
        if self.shared_prefix:
            beginning = (Segment("prefix", self.shared_prefix),)
        quotes = repeat(()) if self.library is None else self.library.quotes(self.seed + 2)
        next_chat = next(arrivals)
        chat = 0
        for _ in range(self.num_requests):
            if not coming or next_chat <= coming[0][0]:
                history = (*beginning, *next(quotes))
                if self.agents > 1:
                    history = (*history, Segment(f"task {chat}", self.input_lengths.draw(random)))
                for agent in range(self.agents):
                    heappush(coming, (next_chat, chat + agent, 0, history))
                chat, next_chat = chat + self.agents, next(arrivals)
            time, number, turn, history = heappop(coming)
            request, history = self._turn(random, time, number, turn, history)
            yield request
            if turn + 1 < self.turns:
                wait = random.expovariate(1 / self.think_seconds)
                heappush(coming, (time + wait, number, turn + 1, history))

    def _turn(
        self, random: Random, time: float, chat: int, turn: int, history: tuple[Segment, ...]
    ) -> tuple[TraceRequest, tuple[Segment, ...]]:
        """One turn, and the history that the next one begins with."""
        asked = Segment(f"{chat}.{turn}?", self.input_lengths.draw(random))
        answer = Segment(f"{chat}.{turn}!", self.output_lengths.draw(random))
        history = (*history, asked)
        prompt = sum(segment.num_tokens for segment in history)
        content = (*history, answer) if self.shares_prefixes else ()
        request = TraceRequest(
            time, prompt, answer.num_tokens, self.n, self.beam_search, content=content
        )
        return request, (*history, answer)


def arrival_times(random: Random, rate: float | None, burstiness: float = 1.0) -> Iterator[float]:
    """Seconds of arrivals, without end; all 0 where there is no rate."""
    time = 0.0
    while True:
        yield time
        if rate is not None:
            time += random.gammavariate(burstiness, 1 / (rate * burstiness))


PRESETS: Mapping[str, Synthetic] = {
    **{name: Synthetic(1, inputs, outputs) for name, (inputs, outputs) in DATASETS.items()},
    # Figures of ours, as is customary: five pieces of 400 tokens of a few thousand are looked up
    # for a question, the best known ones far more often than others, and answered in short.
    "rag": Synthetic(
        1,
        Lengths("lognormal", 40, 0.6),
        Lengths("lognormal", 180, 0.7),
        shared_prefix=250,
        library=Library(2000, Lengths("normal", 400, 60), 5),
    ),
    # Likewise: four agents take up each task, with one long instruction that names their tools;
    # each calls eight of these in turn, reads what they give, and says little.
    "agents": Synthetic(
        1,
        Lengths("lognormal", 300, 0.8),
        Lengths("lognormal", 90, 0.8),
        shared_prefix=1500,
        agents=4,
        turns=8,
        think_seconds=3.0,
    ),
}
