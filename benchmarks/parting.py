"""What a suffix costs that parts from a long prompt in the cache: hybrids beside attention alone.

    python -m benchmarks.parting [--prefix 8192] [--suffix 256] [--layers 8] [--rounds 5]

Two models of Qwen3.5-0.8B's widths with random weights and as many layers: one whose layers keep a
state but for every fourth, one whose layers all attend. Each has read a long prompt. Then texts
come that leave it somewhere in its last 512 tokens: the first at a position goes on from the last
snapshot before, the second from the one that the first has left. Times are of the process, both
models in turn; the ratio is the median over rounds.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import flags_of
from benchmarks.peers.models import SHAPES, Shape, save_random
from quire import LLM, SamplingParams
from quire.kernels.threads import usable_cores

_ONE = SamplingParams(temperature=0.0, max_tokens=1)
_FIRST_ID = 1000  # of tokens that prompts are made of


def _shapes(layers: int) -> dict[str, Shape]:
    fields = {**SHAPES["qwen3.5-0.8b"].fields, "vocab_size": 8192, "num_hidden_layers": layers}
    attending = {**fields, "layer_types": ["full_attention"] * layers}
    return {name: Shape("Qwen3_5TextConfig", one) for name, one in
            (("hybrid", fields), ("attention", attending))}  # fmt: skip


class Reader:
    """One of the models, and the prompt that it has read."""

    def __init__(self, shape: Shape, folder: Path, longest: int) -> None:
        save_random(shape, folder)
        self._llm = LLM(
            folder, dtype="bfloat16", max_model_len=longest, kv_cache_memory_bytes="2GiB",
            max_num_seqs=4, threads=usable_cores(),
        )  # fmt: skip

    def read(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds of the process, and how many tokens were found."""
        began = time.process_time()
        result = self._llm.generate([prompt], _ONE, use_tqdm=False)[0]
        return time.process_time() - began, result.metrics.cached_tokens


def main() -> None:
    parser = flags_of(__doc__)
    for flag, default in (("prefix", 8192), ("suffix", 256), ("layers", 8), ("rounds", 5)):
        parser.add_argument(f"--{flag}", type=int, default=default, help="(default: %(default)s)")
    given = parser.parse_args()
    rng = random.Random(0)

    def words(count: int) -> list[int]:
        return [rng.randrange(_FIRST_ID, 8192) for _ in range(count)]

    prompt, longest = words(given.prefix), given.prefix + given.suffix + 16
    with tempfile.TemporaryDirectory() as folder:
        shapes = _shapes(given.layers)
        readers = {
            name: Reader(shape, Path(folder, name), longest) for name, shape in shapes.items()
        }
        for name, reader in readers.items():
            print(f"{name}: the prompt takes {reader.read(prompt)[0]:.2f} s of the process")
        ratios: dict[str, list[float]] = {"first": [], "second": []}
        for _ in range(given.rounds):
            end = given.prefix - rng.randrange(512)
            for which, found in ratios.items():
                text = [*prompt[:end], *words(given.suffix)]
                seconds = {}
                for name, reader in readers.items():
                    seconds[name], cached = reader.read(text)
                    print(f"parts at {end:,}, {which}: {name} finds {cached:,}, "
                          f"{seconds[name] * 1e3:,.0f} ms")  # fmt: skip
                found.append(seconds["hybrid"] / seconds["attention"])
    for which, found in ratios.items():
        print(f"{which}: the hybrid takes {statistics.median(found):.2f} of the other's time")


if __name__ == "__main__":
    main()
