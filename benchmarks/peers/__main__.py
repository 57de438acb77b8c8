"""Quire beside other servers on this machine, on the same workloads, turn by turn.

    python -m benchmarks.peers [--peers vllm openvino] [--weights bf16 int4] [--rounds 3] [--json]

Each peer has an environment of its own; it is installed, and models are made and converted, on
first use (--set-up does that alone). Models have real shapes and random weights, or are yours
(--models). Each measurement is a new process with nothing beside it: greedy, all requests at once,
and exactly as many tokens out as asked, or it fails. Tables tell medians, ± half of what the
rounds are apart, and in brackets how many times as fast Quire is, with weights of as many bits.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks.peers.cache import Cache
from benchmarks.peers.machine import describe, facts
from benchmarks.peers.measure import REPOSITORY
from benchmarks.peers.models import SHAPES
from benchmarks.peers.session import Session
from benchmarks.peers.systems import PEERS
from benchmarks.peers.systems.quire import Quire
from benchmarks.peers.systems.system import BITS, Setup
from benchmarks.peers.table import as_json, measured, remarks, table
from benchmarks.peers.workloads import NAMES, workloads

_USUAL = ("vllm", "openvino", "llamacpp")
_CACHE = Path(os.environ.get("QUIRE_PEERS_CACHE", REPOSITORY / "build" / "peers"))
_FORCED = ("auto", "amx", "avx512_bf16", "avx512", "avx2", "portable")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def several(flag: str, known: list[str], default: list[str]) -> None:
        text = f"of {', '.join(known)} (default: {' '.join(default)})"
        parser.add_argument(
            flag, nargs="+", choices=known, default=default, metavar="NAME", help=text
        )

    several("--peers", [*PEERS], [*_USUAL])
    several("--shapes", [*SHAPES], ["smollm-135m"])
    parser.add_argument(
        "--models",
        nargs="+",
        type=Path,
        default=[],
        metavar="DIRECTORY",
        help="of real weights, as Hugging Face's libraries save them; in place of shapes",
    )
    several("--weights", [*BITS], ["bf16"])
    several("--workloads", [*NAMES], [*NAMES])
    parser.add_argument("--num-prompts", type=int, default=64, help="at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of (%(default)s)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of everyone (%(default)s)")
    parser.add_argument(
        "--cpu-isa",
        choices=_FORCED,
        help="Quire's instructions, and llama.cpp built for the same; no other peer can be told",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=_CACHE,
        help="for environments and models, 15 GB (default: $QUIRE_PEERS_CACHE or build/peers)",
    )
    parser.add_argument(
        "--cache-gib",
        type=int,
        default=1,
        help="of everyone's keys, values and states (%(default)s; 64 texts of qwen3.5-0.8b: 3)",
    )
    parser.add_argument("--set-up", action="store_true", help="install and convert, and no more")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    arguments = parser.parse_args()
    for model in arguments.models:
        if not (model / "config.json").is_file():
            parser.error(f"--models: {model} has no config.json")
    if arguments.cpu_isa not in (None, "auto") and arguments.peers != ["llamacpp"]:
        parser.error("--cpu-isa: only llama.cpp can be built to match; add --peers llamacpp")
    return arguments


def main() -> int:
    arguments = _arguments()
    cache = Cache(arguments.cache)
    setup = Setup(cache, arguments.threads, arguments.cpu_isa, arguments.cache_gib)
    systems = {"quire": Quire(setup), **{name: PEERS[name](setup) for name in arguments.peers}}
    session = Session(setup.cache, systems, arguments.weights)
    chosen = [str(model) for model in arguments.models] or arguments.shapes
    tables = {shape: session.set_up(shape) for shape in chosen}
    if arguments.set_up:
        return int(any(row.failure for rows in tables.values() for row in rows))
    machine = facts(arguments.threads)
    columns = workloads(arguments.workloads, arguments.num_prompts)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever is running ends with us
    try:
        for shape, rows in tables.items():
            session.measure(shape, rows, columns, arguments.rounds)
    except KeyboardInterrupt:
        print("interrupted: these are the runs until then", file=sys.stderr)
    if arguments.json:
        shapes = {shape: as_json(rows) for shape, rows in tables.items()}
        print(json.dumps({"machine": machine, "cpu_isa": arguments.cpu_isa, "shapes": shapes}))
        return 0
    print(describe(machine))
    for shape, rows in tables.items():
        print(f"\n{shape}, medians of {measured(rows)}\n\n{table(rows, columns)}\n")
        print(*remarks(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
