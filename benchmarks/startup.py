"""From the command to a server that answers, and to the first token; memory at that point.

    python benchmarks/startup.py [MODEL] [--dtype bfloat16 ...]

Each round starts ``quire serve`` in a new process, waits for /health, asks for one token, and stops
it. Files are in the page cache from the second round on. Flags that are not listed here are the
engine's.
"""

from __future__ import annotations

import statistics
import time

from common import add_common_flags, flags_of, show

from quire_lab.bench.processes import serving
from quire_lab.bench.systems import Online
from quire_lab.bench.workloads import one_request


def start(arguments: list[str]) -> tuple[float, float, int]:
    """Seconds until healthy, seconds until the first token, and peak resident bytes."""
    started = time.perf_counter()
    with serving(arguments) as server:
        Online(server.url).run([one_request(16, 1, seed=0)]).all_metrics()
        return server.start_seconds, time.perf_counter() - started, server.peak_rss() or 0


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser, rounds=5)
    arguments, engine = parser.parse_known_args()

    model = [] if arguments.model is None else [arguments.model]
    rounds = [start([*model, *engine]) for _ in range(arguments.rounds)]
    healthy, first_token, memory = map(statistics.median, zip(*rounds, strict=True))
    results = {
        "healthy_seconds": healthy,
        "first_token_seconds": first_token,
        "first_round_healthy_seconds": rounds[0][0],
        "peak_rss_mib": memory / 2**20,
    }
    show(results, arguments.json)


if __name__ == "__main__":
    main()
