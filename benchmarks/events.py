"""What it costs to tell others what the prefix cache holds.

    python benchmarks/events.py [MODEL] [--dtype bfloat16 ...]

Two engines in this process, one of which publishes KV events to a subscriber in another process,
serve the same requests in turn, from a pool so small that blocks are evicted. Flags that are not
listed here are the engine's.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from common import add_common_flags, flags_of, show

from quire import LLM, SamplingParams
from quire.tools.commands.flags import add_engine_flags, options

READER = """
import sys, zmq
reader = zmq.Context().socket(zmq.SUB)
reader.setsockopt_string(zmq.SUBSCRIBE, "")
reader.connect(sys.argv[1])
while True:
    reader.recv_multipart()
"""


def seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> tuple[float, float]:
    """By the clock, and of processors, which others on the machine change less."""
    begun, used = time.perf_counter(), time.process_time()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begun, time.process_time() - used


def main() -> None:
    parser = flags_of(__doc__)
    add_common_flags(parser, rounds=9)
    parser.add_argument("--num-prompts", type=int, default=64, help="requests (%(default)s)")
    parser.add_argument("--input-len", type=int, default=256, help="tokens (%(default)s)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens (%(default)s)")
    add_engine_flags(parser)
    arguments = parser.parse_args()
    given: dict[str, Any] = {"kv_cache_memory_bytes": "64MiB", **options(arguments)}
    params = SamplingParams(
        max_tokens=arguments.output_len, temperature=0, ignore_eos=True, detokenize=False
    )
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        address = f"ipc://{place}/events"
        config = {"enable_kv_cache_events": True, "endpoint": address}
        silent, telling = LLM(**given), LLM(**{**given, "kv_events_config": config})
        reader = subprocess.Popen([sys.executable, "-c", READER, address])
        ratios, used = [], []
        for number in range(arguments.rounds + 1):
            prompts = [
                [rng.randrange(10, 500) for _ in range(arguments.input_len)]
                for _ in range(arguments.num_prompts)
            ]
            pair = [silent, telling] if number % 2 else [telling, silent]
            took = {id(llm): seconds(llm, prompts, params) for llm in pair}
            if number:  # the first round warms up
                ratios.append(took[id(silent)][0] / took[id(telling)][0])
                used.append(took[id(silent)][1] / took[id(telling)][1])
        assert telling.engine.capabilities.events is not None
        told = telling.engine.capabilities.events.num_published
        reader.terminate()
        reader.wait()
        telling.engine.close()
    show(
        {
            "throughput_on_to_off": statistics.median(ratios),
            "the_same_by_cpu_time": statistics.median(used),
            "lowest": min(ratios),
            "highest": max(ratios),
            "batches_published": float(told),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
