"""What every server is given: prompts of token ids, and exactly how many tokens to answer with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quire_lab.bench.workloads import BenchRequest, make_workload, one_request

_SEED = 7
_FIRST_TOKENS = (1900, 4096)
NAMES = ("sharegpt", "alpaca", "prefix", "alone", "brief", "burst", "first-token")
_ALONE = {"alone": 256, "brief": 64}  # tokens of the answer


class Workload(NamedTuple):
    """A column of the table."""

    name: str
    requests: list[BenchRequest]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.max_tokens for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        return max(len(request.prompt) + request.max_tokens for request in self.requests)

    @property
    def of_one_token(self) -> bool:
        """Whether what counts is when the first token comes, not how many come a second."""
        return self.output_tokens == 1

    @property
    def shares_a_prefix(self) -> bool:
        return self.name == "prefix"

    def write(self, folder: Path) -> Path:
        """As a file of JSON lines, which ``quire bench`` and the runners read."""
        file = folder / f"{self.name}-{len(self.requests)}.jsonl"
        rows = ({"prompt": one.prompt, "max_tokens": one.max_tokens} for one in self.requests)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return file


def workloads(names: Sequence[str], num_prompts: int) -> list[Workload]:
    """Those of ``NAMES``, in the table's order; "first-token" is one for each length."""
    found: list[Workload] = []
    for name in (name for name in NAMES if name in names):
        if name in _ALONE:
            found.append(Workload(name, [one_request(128, _ALONE[name], _SEED)]))
        elif name == "burst":
            found.append(Workload(name, [one_request(64, 32, seed=i) for i in range(num_prompts)]))
        elif name == "first-token":
            found += [
                Workload(f"{name}-{length}", [one_request(length, 1, _SEED)])
                for length in _FIRST_TOKENS
            ]
        else:
            found.append(Workload(name, make_workload(name, num_prompts, _SEED)))
    return found
