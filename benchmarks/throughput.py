"""Tokens per second of many requests at once: offline, and from a server over HTTP.

    python benchmarks/throughput.py [MODEL] [--workload alpaca] [--server] [--dtype bfloat16 ...]

Each measurement is a new process. With --server, a server is started for each round as well and
measured with one streaming client a request, turn by turn with the engine alone; the ratio says
what serving over HTTP costs. Client and server share the machine. Flags that are not listed here
are the engine's.
"""

from __future__ import annotations

from typing import Any

from common import add_common_flags, flags_of, middle, show

from quire_lab.bench.processes import run_bench, serving


def served(model: list[str], engine: list[str], workload: list[str]) -> dict[str, Any]:
    """The report on a new server, with the server's memory and start-up time."""
    with serving([*model, *engine]) as server:
        report = run_bench(["throughput", "--url", server.url, *workload])
        report["peak_rss_bytes"] = server.peak_rss()
        report["start_seconds"] = server.start_seconds
    return report


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser)
    parser.add_argument("--workload", default="sharegpt", help="sharegpt, alpaca, prefix or a file")
    parser.add_argument("--num-prompts", default="64", help="requests (%(default)s)")
    parser.add_argument("--server", action="store_true", help="measure a server as well")
    arguments, engine = parser.parse_known_args()

    model = [] if arguments.model is None else [arguments.model]
    workload = ["--workload", arguments.workload, "--num-prompts", arguments.num_prompts]
    rounds: dict[str, list[dict[str, Any]]] = {"offline": [], "server": []}
    for _ in range(arguments.rounds):
        rounds["offline"].append(run_bench(["throughput", *model, *workload, *engine]))
        if arguments.server:
            rounds["server"].append(served(model, engine, workload))

    results: dict[str, Any] = {name: middle(reports) for name, reports in rounds.items() if reports}
    if arguments.server:
        rates = [results[name]["output_tokens_per_second"] for name in ("server", "offline")]
        results["server_to_offline"] = rates[0] / rates[1]
    show(results, arguments.json)


if __name__ == "__main__":
    main()
