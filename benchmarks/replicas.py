"""What routing by prefixes gains, and what Ray costs.

    python benchmarks/replicas.py MODEL [--dtype bfloat16 ...]

Two replicas with a thread each, whose KV pools hold half of what is shared: requests in random
order, two at a time, begin with one of 8 prefixes of 512 tokens, and have 32 tokens of their own
and 16 out. Routed by prefixes and in turns, each in a new Ray, one after the other. Then one
stream, from one replica behind Ray and from a server without, turn by turn. Take a model that needs
longer for a prefix than Ray for a request, which the demonstration model does not. With 135M
parameters it takes two minutes on two cores, of which a Ray's start and end take half a minute
each; what is known so far goes to stderr. Flags that are not listed here are the engine's.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import add_common_flags, flags_of, show

from quire.models.demo import DEMO_MODEL
from quire.models.shape import read_shape
from quire_lab.bench.http_client import HttpClient
from quire_lab.bench.processes import serving

PREFIXES, PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 8, 512, 32, 16
AT_ONCE = 2
STREAMED_TOKENS = 128
ROUTINGS = ("prefix", "round_robin")


class Streamed(NamedTuple):
    """Seconds to the first token, and for each after it."""

    first: float
    token: float


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser, rounds=1)
    parser.add_argument("--requests", type=int, default=96, help="of each run (%(default)s)")
    arguments, engine = parser.parse_known_args()

    model = [] if arguments.model is None else [arguments.model]
    flags = [*model, "--threads", "1", *engine]
    pool = _pool_bytes(Path(arguments.model or DEMO_MODEL))
    routed: dict[str, list[tuple[float, float]]] = {name: [] for name in ROUTINGS}
    for number in range(arguments.rounds):
        for name in ROUTINGS:
            own = ["--replicas", "2", "--routing", name, "--kv-cache-memory-bytes", str(pool)]
            _tell(f"routed by {name}, round {number + 1} of {arguments.rounds}: starting a Ray")
            with serving([*flags, *own], "deploy") as server:
                _tell(f"{arguments.requests} requests")
                seconds = asyncio.run(_shared_prefixes(server.url, arguments.requests, number))
                rate = _hit_rate(server.url)
            _tell(f"hit rate {rate:.3f}, mean time to first token {seconds:.3f} s")
            routed[name].append((rate, seconds))
    results: dict[str, Any] = {}
    for at, figure in enumerate(("hit_rate", "mean_ttft_seconds")):
        by_routing = [statistics.median(run[at] for run in routed[name]) for name in ROUTINGS]
        for name, value in zip(ROUTINGS, by_routing, strict=True):
            results[f"{figure}_{name}"] = value
        results[f"{figure}_prefix_to_round_robin"] = by_routing[0] / by_routing[1]
    show({**results, **_cost_of_ray(flags, arguments.rounds)}, arguments.json)


async def _shared_prefixes(url: str, requests: int, seed: int) -> float:
    """The mean time to first token."""
    draw = random.Random(seed)
    prefixes = [_tokens(draw, PREFIX_TOKENS) for _ in range(PREFIXES)]
    prompts = [draw.choice(prefixes) + _tokens(draw, OWN_TOKENS) for _ in range(requests)]
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(prompt: Sequence[int]) -> float:
        async with turns:
            return (await _stream(url, prompt, OUTPUT_TOKENS)).first

    return statistics.mean(await asyncio.gather(*map(one, prompts)))


async def _stream(url: str, prompt: Sequence[int], length: int) -> Streamed:
    body = {"prompt": prompt, "max_tokens": length, "stream": True, "ignore_eos": True}
    begun, times = time.perf_counter(), []
    async with HttpClient(url).send("POST", "/v1/completions", body) as reply:
        async for _ in reply.events():
            times.append(time.perf_counter())
    return Streamed(times[0] - begun, (times[-1] - times[0]) / (length - 1))


def _hit_rate(url: str) -> float:
    text = asyncio.run(HttpClient(url).get("/metrics"))
    hits, queries = (
        sum(float(value) for value in re.findall(rf"^quire:prefix_cache_{what}_total{{.*}} (.*)$",
                                                 text, re.MULTILINE))
        for what in ("hits", "queries")
    )  # fmt: skip
    return hits / queries


def _cost_of_ray(flags: list[str], rounds: int) -> dict[str, float]:
    prompt = _tokens(random.Random(0), OWN_TOKENS)
    told: dict[str, list[Streamed]] = {"ray": [], "alone": []}
    pool = ["--kv-cache-memory-bytes", "64MiB"]
    _tell("one stream, with Ray and without: starting both")
    with serving([*flags, *pool], "deploy") as ray, serving([*flags, *pool]) as alone:
        turns = 4 * rounds + 1
        for number in range(turns):
            _tell(f"turn {number + 1} of {turns}")
            for name, url in (("ray", ray.url), ("alone", alone.url)):
                streamed = asyncio.run(_stream(url, prompt, STREAMED_TOKENS))
                if number:  # the first ones warm up
                    told[name].append(streamed)
    first, token = (
        [statistics.median(run[at] for run in told[name]) for name in ("ray", "alone")]
        for at in range(2)
    )
    return {
        "ray_microseconds_a_streamed_token": 1e6 * (token[0] - token[1]),
        "streamed_token_ray_to_alone": token[0] / token[1],
        "ray_milliseconds_to_first_token": 1e3 * (first[0] - first[1]),
    }


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _pool_bytes(model: Path) -> int:
    """Room for half of the prefixes, and for what the last few requests have beside them."""
    held = PREFIXES // 2 * (PREFIX_TOKENS + AT_ONCE * (OWN_TOKENS + OUTPUT_TOKENS))
    return read_shape(model / "config.json").kv_bytes_per_token * held


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(100, 1000) for _ in range(count)]


if __name__ == "__main__":
    main()
