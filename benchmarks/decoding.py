"""What a decoding step takes by number of sequences, against what the machine allows.

    python benchmarks/decoding.py [MODEL] [--rows 1 4 17 64] [--input-len 24] [--dtype bfloat16 ...]

So many prompts of random tokens are decoded together, and the median step counts. Beside it stand
the weights' bytes over that time, against what a long sum reads, and the arithmetic of products
with them, against a large product of PyTorch, where --dtype says what all weights are. Flags that
are not listed here are the engine's.
"""

from __future__ import annotations

import statistics
import time

import torch
from common import flags_of

from quire import LLM
from quire.tools.commands.flags import engine_options
from quire.tools.doctor.machine import read_bandwidth, shortest
from quire_lab.bench.report import machine_facts
from quire_lab.bench.workloads import one_request

STEPS = 60


def median_step(llm: LLM, rows: int, input_len: int) -> float:
    """Seconds of a step in which ``rows`` sequences get a token each."""
    for i in range(rows):
        request = one_request(input_len, STEPS, seed=i)
        params = llm.default_sampling_params(temperature=0, max_tokens=STEPS, ignore_eos=True)
        llm.engine.add_request(f"{rows}-{i}", request.prompt, params)
    times = []
    while llm.engine.has_work:
        started = time.perf_counter()
        deltas = llm.engine.step()
        if len(deltas) == rows:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def large_product(dtype: torch.dtype, size: int = 2048) -> float:
    """Floating-point operations a second."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    return 2 * size**3 / shortest(lambda: a @ b)


@torch.inference_mode()
def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 12, 17, 24, 32, 64])
    parser.add_argument("--input-len", type=int, default=24, help="of a prompt (%(default)s)")
    arguments, engine = parser.parse_known_args()
    llm = LLM(**engine_options(engine))
    nbytes = llm.capacity.weight_bytes
    dtype = None if llm.config.quantization else getattr(torch, llm.config.dtype, None)
    print(f"{machine_facts()['cpu']}, {torch.get_num_threads()} threads")
    for rows in arguments.rows:
        seconds = median_step(llm, rows, arguments.input_len)
        read = nbytes / seconds / read_bandwidth()
        line = f"{rows:4} rows {seconds * 1e3:8.2f} ms, read {read:4.0%}"
        if dtype is not None:
            operations = 2 * rows * nbytes / dtype.itemsize
            line += f", computed {operations / seconds / large_product(dtype):4.0%}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
