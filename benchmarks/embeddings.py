"""Vectors a second: Quire beside sentence-transformers and vLLM, turn by turn.

    python benchmarks/embeddings.py MODEL [--dtype bfloat16] [--texts 512] [--tokens 128]

Texts of random tokens, pooled by the last one and normalised, in one process each. All are told
the threads and the dtype, and left out if they are not there; sentence-transformers sorts the texts
by length and takes them in batches. --python and --vllm name interpreters that have them, where
this one has not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="directory of a model with a tokenizer")
    parser.add_argument("--texts", type=int, default=512, help="of them (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of each (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="of weights (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="that compute (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="theirs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="that has sentence-transformers")
    parser.add_argument("--vllm", metavar="PYTHON", default=sys.executable, help="that has vLLM")
    parser.add_argument("--only", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(SYSTEMS[arguments.only](arguments)))
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SYSTEMS}
    for _ in range(arguments.rounds):
        for name, rounds in found.items():
            report = _in_a_process(name, arguments)
            if report is not None:
                rounds.append(report)
    _show({name: rounds for name, rounds in found.items() if rounds})


def texts(arguments: argparse.Namespace) -> list[str]:
    """Words of the model's own, each a token: so many in every text, special ones aside."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(arguments.model) / "tokenizer.json"))
    words = [
        text
        for number in range(200, min(20_000, tokenizer.get_vocab_size()))
        if (text := tokenizer.decode([number])).startswith(" ") and text[1:].isalpha()
    ]
    rng = random.Random(0)
    return ["".join(rng.choices(words, k=arguments.tokens)) for _ in range(arguments.texts)]


def quire(arguments: argparse.Namespace) -> dict[str, Any]:
    from quire import LLM

    llm = LLM(arguments.model, dtype=arguments.dtype, threads=arguments.threads)
    prompts = texts(arguments)
    llm.embed(prompts[:8], use_tqdm=False)
    begun = time.perf_counter()
    outputs = llm.embed(prompts, use_tqdm=False)
    seconds = time.perf_counter() - begun
    return _report(seconds, sum(len(one.prompt_token_ids) for one in outputs),
                   outputs[0].outputs.embedding, len(outputs))  # fmt: skip


def sentence_transformers(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    from sentence_transformers import SentenceTransformer, models

    torch.set_num_threads(arguments.threads)
    body = models.Transformer(
        arguments.model, model_args={"dtype": getattr(torch, arguments.dtype)}
    )
    if body.tokenizer.pad_token is None:
        body.tokenizer.pad_token = body.tokenizer.eos_token
    width = body.get_word_embedding_dimension()
    pooling = models.Pooling(width, pooling_mode="lasttoken")
    model = SentenceTransformer(modules=[body, pooling, models.Normalize()], device="cpu")
    prompts = texts(arguments)
    model.encode(prompts[:8])
    begun = time.perf_counter()
    vectors = model.encode(prompts, batch_size=arguments.batch_size)
    seconds = time.perf_counter() - begun
    tokens = sum(len(ids) for ids in body.tokenizer(prompts)["input_ids"])
    return _report(seconds, tokens, vectors[0].tolist(), len(vectors))


def vllm(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    from vllm import LLM

    llm = LLM(
        arguments.model,
        runner="pooling",
        convert="embed",
        dtype=arguments.dtype,
        max_model_len=2048,
        disable_log_stats=True,
    )
    prompts = texts(arguments)
    llm.embed(prompts[:8], use_tqdm=False)
    begun = time.perf_counter()
    outputs = llm.embed(prompts, use_tqdm=False)
    seconds = time.perf_counter() - begun
    tokens = sum(len(one.prompt_token_ids) for one in outputs)
    return _report(seconds, tokens, outputs[0].outputs.embedding, len(outputs))


SYSTEMS = {"quire": quire, "sentence-transformers": sentence_transformers, "vllm": vllm}


def _report(seconds: float, tokens: int, first: list[float], count: int) -> dict[str, Any]:
    return {"texts_per_second": count / seconds, "tokens_per_second": tokens / seconds,
            "first": first}  # fmt: skip


def _in_a_process(name: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    others = {"sentence-transformers": arguments.python, "vllm": arguments.vllm}
    python = others.get(name, sys.executable)
    done = subprocess.run(
        [python, __file__, *sys.argv[1:], "--only", name], capture_output=True, text=True
    )
    if done.returncode:
        print(f"{name} is left out: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _show(found: dict[str, list[dict[str, Any]]]) -> None:
    from quire_lab.bench.report import machine_facts

    machine = machine_facts()
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    medians = {}
    for name, rounds in found.items():
        rates = [one["texts_per_second"] for one in rounds]
        medians[name] = statistics.median(rates)
        tokens = statistics.median(one["tokens_per_second"] for one in rounds)
        print(f"{name}: {medians[name]:.1f} texts/s, {tokens:,.0f} tokens/s "
              f"({min(rates):.1f} to {max(rates):.1f})")  # fmt: skip
    ours = found.pop("quire")[0]["first"]
    for name, rounds in found.items():
        cosine = sum(a * b for a, b in zip(ours, rounds[0]["first"], strict=True))
        print(f"quire to {name}: {medians['quire'] / medians[name]:.2f}; "
              f"cosine of the first vectors: {cosine:.5f}")  # fmt: skip


if __name__ == "__main__":
    main()
