"""Step times that others have published, as a table for quire calibrate --steps.

    python benchmarks/published_steps.py perf_model.csv h100-80gb llama2-70b 8 > steps.csv
    quire calibrate llama-2-70b --steps steps.csv --num-blocks N

The first file is data/perf_model.csv of https://github.com/Mutinifni/splitwise-sim, measured on
DGX-A100 and DGX-H100 with vLLM of 2023 for Patel et al., "Splitwise: Efficient Generative LLM
Inference Using Phase Splitting" (ISCA 2024): for batches of equal requests the milliseconds of the
step that computes the prompts, and the mean of those that decode, over tensor_parallel GPUs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

_MOST_TOGETHER = 32  # prompts; of more, the published time is not one of a single step
_NAMES = ("hardware", "model", "tensor_parallel")
_COLUMNS = (
    "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_context", "samples", "seconds",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    for name in _NAMES:
        parser.add_argument(name)
    wanted = vars(parser.parse_args())
    with wanted["table"].open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[n] == wanted[n] for n in _NAMES)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([*steps(rows, "prompt"), *steps(rows, "token")])


def steps(rows: Sequence[Mapping[str, str]], kind: str) -> Iterator[list[float]]:
    """Of each batch the mean over its repetitions; of those that decode, in mid-output."""
    times: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        batch, prompt, output = (int(row[f"{name}_size"]) for name in ("batch", "prompt", "token"))
        if batch <= _MOST_TOGETHER:
            key = batch, prompt, output if kind == "token" else 0
            times.setdefault(key, []).append(float(row[f"{kind}_time"]) / 1e3)
    for (batch, prompt, output), taken in sorted(times.items()):
        if kind == "token":
            yield [0, 0, batch, batch * (prompt + output / 2), batch, fmean(taken)]
        else:
            yield [batch * prompt, batch * prompt * (prompt + 1) / 2, 0, 0, batch, fmean(taken)]


if __name__ == "__main__":
    main()
