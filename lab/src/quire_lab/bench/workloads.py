"""Requests to measure with: lengths as users send them, prompts of random tokens, by a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest
from quire_lab.workload.clipping import clipped

_TOKENS = (10, 1000)  # ids that any vocabulary has, beyond the special ones
_PREFIX, _OWN, _ANSWER = 256, 32, 64  # tokens of the "prefix" workload


class BenchRequest(NamedTuple):
    """A prompt, and exactly how many tokens to generate for it."""

    prompt: list[int]
    max_tokens: int
    arrival: float = 0.0  # seconds after the start

    def cut(self, max_model_len: int | None) -> BenchRequest:
        """The request as a model of this length can serve it (``TraceRequest.clipped``)."""
        if max_model_len is None:
            return self
        asked = TraceRequest(self.arrival, len(self.prompt), self.max_tokens)
        length = clipped(asked, max_model_len)
        return BenchRequest(self.prompt[: length.prompt_tokens], length.output_tokens, self.arrival)


def make_workload(name: str, num_prompts: int, seed: int = 7) -> list[BenchRequest]:
    """Requests that all arrive at once.

    ``name`` is one of ``WORKLOADS``, or a file with a JSON object {"prompt": [token ids],
    "max_tokens": int} a line, of which the first ``num_prompts`` are taken. Raises ConfigError.
    """
    _at_least_one("num_prompts", num_prompts)
    if name not in WORKLOADS:
        return _read(name, num_prompts)
    rng = np.random.default_rng(seed)
    lengths = WORKLOADS[name](rng, num_prompts)
    shared = _random_tokens(rng, _PREFIX) if name == "prefix" else []
    return fill(lengths, rng, shared)


def one_request(input_len: int, output_len: int, seed: int) -> BenchRequest:
    """A request of these lengths; its prompt depends on the seed alone. Raises ConfigError."""
    _at_least_one("input_len", input_len)
    _at_least_one("output_len", output_len)
    return fill([TraceRequest(0.0, input_len, output_len)], np.random.default_rng(seed))[0]


def fill(
    lengths: Iterable[TraceRequest], rng: Generator, shared: Sequence[int] = ()
) -> list[BenchRequest]:
    """Give requests random prompts, which begin with the ``shared`` tokens."""
    return [
        BenchRequest(
            [*shared, *_random_tokens(rng, length.prompt_tokens - len(shared))],
            length.output_tokens,
            length.arrival,
        )
        for length in lengths
    ]


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{field} must be at least 1, got {value}")


def _random_tokens(rng: Generator, count: int) -> list[int]:
    tokens: list[int] = rng.integers(*_TOKENS, count).tolist()
    return tokens


def _lognormal(
    rng: Generator, count: int, mean: float, sigma: float, bounds: tuple[int, int]
) -> list[int]:
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    lengths: list[int] = np.clip(drawn.astype(int), *bounds).tolist()
    return lengths


def _chats(rng: Generator, count: int) -> list[TraceRequest]:
    inputs = _lognormal(rng, count, 161, 1.0, (4, 1024))
    outputs = _lognormal(rng, count, 338, 0.8, (8, 1024))
    return [TraceRequest(0.0, i, o) for i, o in zip(inputs, outputs, strict=True)]


def _instructions(rng: Generator, count: int) -> list[TraceRequest]:
    inputs = _lognormal(rng, count, 19, 0.5, (4, 100))
    outputs = _lognormal(rng, count, 58, 0.8, (4, 300))
    return [TraceRequest(0.0, i, o) for i, o in zip(inputs, outputs, strict=True)]


def _after_a_prefix(rng: Generator, count: int) -> list[TraceRequest]:
    return [TraceRequest(0.0, _PREFIX + _OWN, _ANSWER)] * count


WORKLOADS: Mapping[str, Callable[[Generator, int], list[TraceRequest]]] = {
    "sharegpt": _chats,
    "alpaca": _instructions,
    "prefix": _after_a_prefix,
}
"""Lengths by name. sharegpt and alpaca: log-normal with the mean lengths of the PagedAttention
paper's datasets (figure 11: 161 tokens in, 338 out; 19 and 58). prefix: 256 tokens that all
prompts share, then 32 of their own, 64 out."""


def _read(name: str, count: int) -> list[BenchRequest]:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()[:count]
        rows = [json.loads(line) for line in lines]
        requests = [
            BenchRequest([*map(int, row["prompt"])], int(row["max_tokens"])) for row in rows
        ]
    except FileNotFoundError as error:
        raise ConfigError(
            f"workload must be one of {', '.join(WORKLOADS)} or a file of JSON lines, got {name!r}"
        ) from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"workload {name} cannot be read: {error!r}") from error
    _at_least_one(f"the number of requests in {name}", len(requests))
    for request in requests:
        _at_least_one(f"max_tokens in {name}", request.max_tokens)
        _at_least_one(f"the length of a prompt in {name}", len(request.prompt))
    return requests
