"""One request alone: how fast it decodes, against what memory allows, and its first token.

    python benchmarks/latency.py [MODEL] [--dtype bfloat16 ...]

128 tokens in and 256 out, then a prompt of 4,096 tokens (or of the model's length) and one out.
Each measurement is a new process. A step of one sequence must read all weights and the sequence's
keys and values; the share of the machine's read bandwidth says how near to that limit decoding
is. Flags that are not listed here are the engine's.
"""

from __future__ import annotations

import statistics
from typing import Any

from common import add_common_flags, flags_of, show

from quire_lab.bench.processes import run_bench

DECODE = ["--input-len", "128", "--output-len", "256", "--num-iters", "1"]
LONG = ["--input-len", "4096", "--output-len", "1", "--num-iters", "1"]


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser)
    arguments, engine = parser.parse_known_args()

    model = [] if arguments.model is None else [arguments.model]
    decodes, prompts = [], []
    for _ in range(arguments.rounds):
        decodes.append(run_bench(["latency", *model, *DECODE, *engine]))
        prompts.append(run_bench(["latency", *model, *LONG, *engine]))
    results = {"alone": _middle(decodes, "tpot"), "long prompt": _middle(prompts, "ttft")}
    show(results, arguments.json)


def _middle(reports: list[dict[str, Any]], time: str) -> dict[str, Any]:
    """The report whose ``time`` is the median."""
    times = [report[time]["p50"] for report in reports]
    return reports[times.index(statistics.median_low(times))]


if __name__ == "__main__":
    main()
