"""What prefix caching gains when all prompts begin alike.

    python benchmarks/prefix.py [MODEL] [--dtype bfloat16 ...]

64 requests at once with 256 tokens in common, 32 of their own and 64 out, with the cache on and
off, turn by turn, each in a new process. Flags that are not listed here are the engine's.
"""

from __future__ import annotations

from typing import Any

from common import add_common_flags, flags_of, middle, show

from quire_lab.bench.processes import run_bench

FLAGS = {"cached": "--enable-prefix-caching", "uncached": "--no-enable-prefix-caching"}


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser)
    parser.add_argument("--num-prompts", default="64", help="requests (%(default)s)")
    arguments, engine = parser.parse_known_args()

    model = [] if arguments.model is None else [arguments.model]
    workload = ["--workload", "prefix", "--num-prompts", arguments.num_prompts]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in FLAGS}
    for _ in range(arguments.rounds):
        for name, flag in FLAGS.items():
            rounds[name].append(run_bench(["throughput", *model, *workload, flag, *engine]))
    results: dict[str, Any] = {name: middle(reports) for name, reports in rounds.items()}
    rates = [results[name]["output_tokens_per_second"] for name in FLAGS]
    results["cached_to_uncached"] = rates[0] / rates[1]
    show(results, arguments.json)


if __name__ == "__main__":
    main()
