"""vLLM on CPUs with and without adapters, turn by turn; see ``benchmarks/adapters.py``.

    python -m benchmarks.peers.runners.vllm_adapters MODEL FOLDER JOB

FOLDER holds adapters as PEFT saves them. JOB is JSON: the prompts' token ids, the tokens of each
output, the largest rank, and rounds. Prints the rates of each round: {"none": [...], "all": [...]}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest


def main() -> None:
    model, folder, job = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    adapters = [
        LoRARequest(path.name, number + 1, str(path))
        for number, path in enumerate(sorted(folder.iterdir()))
    ]
    llm = LLM(
        model,
        dtype="bfloat16",
        enable_lora=True,
        max_loras=len(adapters),
        max_lora_rank=job["rank"],
        enable_prefix_caching=False,
        max_num_seqs=len(job["prompts"]),
        max_model_len=2048,
        disable_log_stats=True,
    )
    count, tokens = len(job["prompts"]), job["tokens"]
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    rates: dict[str, list[float]] = {"none": [], "all": []}
    for _ in range(job["rounds"] + 1):
        for kind, chosen in (("none", [None]), ("all", adapters)):
            each = [chosen[number % len(chosen)] for number in range(count)]
            started = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False, lora_request=each)
            rates[kind].append(count * tokens / (time.perf_counter() - started))
    print(json.dumps({kind: found[1:] for kind, found in rates.items()}), flush=True)


if __name__ == "__main__":
    main()
