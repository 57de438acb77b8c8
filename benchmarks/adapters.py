"""What adapters cost: requests with several adapters against the same requests without.

    python -m benchmarks.adapters [MODEL] [--adapters 8] [--rank 16] [--requests 32] [--rounds 5]

Adapters are random, of all that can be adapted. Each round serves the requests without adapters,
with one for all of them, and with all adapters in turn, in one engine; rates are the medians of
rounds, and shares the medians of each round's own, so that what the machine does besides meets all
of them alike. --vllm names the Python of an environment with vLLM's build for CPUs, which then does
the same: MODEL must be a directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from quire import LLM, LoRARequest, SamplingParams
from quire.models.adaptable import adaptable
from quire.models.decoder import DecoderModel


def save_adapter(directory: Path, model: DecoderModel, rank: int, seed: int) -> LoRARequest:
    torch.manual_seed(seed)
    tensors = {}
    for name, module in adaptable(model).items():
        for half, shape in (("A", (rank, module.inputs)), ("B", (module.outputs, rank))):
            tensor = torch.randn(shape) * 0.02
            tensors[f"base_model.model.{name}.lora_{half}.weight"] = tensor.to(model.dtype)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return LoRARequest(directory.name, 0, str(directory))


def tokens_per_second(
    llm: LLM, prompts: list[list[int]], tokens: int, adapters: Sequence[LoRARequest | None]
) -> float:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    each = [adapters[number % len(adapters)] for number in range(len(prompts))]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False, lora_request=each)
    return len(prompts) * tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", help="directory (default: the demonstration model)")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=32, help="tokens (%(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each output (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantization")
    parser.add_argument("--vllm", metavar="PYTHON", help="to measure beside it")
    arguments = parser.parse_args()
    llm = LLM(
        arguments.model,
        enable_lora=True,
        max_loras=arguments.adapters,
        max_lora_rank=arguments.rank,
        enable_prefix_caching=False,
        quantization=arguments.quantization,
    )
    print(llm.capacity.describe())
    model = llm.engine.executor.worker.model  # type: ignore[attr-defined]
    rng, vocabulary = random.Random(0), model.vocab_size
    prompts = [
        [rng.randrange(vocabulary) for _ in range(arguments.prompt)]
        for _ in range(arguments.requests)
    ]
    with tempfile.TemporaryDirectory() as directory:
        adapters = [
            save_adapter(Path(directory) / f"adapter-{number}", model, arguments.rank, number)
            for number in range(arguments.adapters)
        ]
        kinds = {"none": [None], "one": adapters[:1], f"{len(adapters)} in turn": adapters}
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(arguments.rounds + 1):
            for kind, chosen in kinds.items():
                rate = tokens_per_second(llm, prompts, arguments.tokens, chosen)
                if number:  # the first one warms up, and reads the adapters
                    rates[kind].append(rate)
        show(rates)
        if arguments.vllm:
            llm.engine.close()
            theirs = of_vllm(arguments, prompts, directory)
            show({"vLLM, none": theirs["none"], "vLLM, all": theirs["all"]})


def of_vllm(
    arguments: argparse.Namespace, prompts: list[list[int]], folder: str
) -> dict[str, list[float]]:
    job = {"prompts": prompts, "tokens": arguments.tokens}
    job |= {"rank": arguments.rank, "rounds": arguments.rounds}
    runner = "benchmarks.peers.runners.vllm_adapters"
    command = [arguments.vllm, "-m", runner, arguments.model, folder, json.dumps(job)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": cores}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    rates: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return rates


def show(rates: dict[str, list[float]]) -> None:
    """The first is what the others are compared with."""
    base = next(iter(rates.values()))
    for kind, found in rates.items():
        shares = [rate / without for rate, without in zip(found, base, strict=True)]
        print(
            f"{kind:>12} adapters: {statistics.median(found):8.1f} tokens/s, "
            f"{statistics.median(shares):.3f} of the rate without",
            flush=True,
        )


if __name__ == "__main__":
    main()
