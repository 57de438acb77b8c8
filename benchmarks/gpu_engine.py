"""The engine on an NVIDIA GPU: against transformers, the device's limits, and itself.

    python benchmarks/gpu_engine.py                     # all of it, with a Llama-3-8B shape
    python benchmarks/gpu_engine.py --layers 8          # a smaller model
    python benchmarks/gpu_engine.py --only recovery     # one part
    python benchmarks/gpu_engine.py --requests 64       # of 256, for both engines

Weights are random, made in a directory for temporaries. Lengths are drawn around the means of
ShareGPT's chats in the PagedAttention paper (161 tokens in, 338 out); both engines compute the
same ones, greedily, to the last token.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import quire
from quire import LLM, SamplingParams
from quire.core.errors import QuireError
from quire.core.protocol import Step
from quire.engine.capacity import limits_of
from quire.execution.device import choose_device

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, DIM = 128_256, 4096, 14_336, 32, 8, 128
MEANS = 161, 338
BATCH = 64  # of transformers


def make_model(directory: Path, layers: int) -> None:
    """A checkpoint in the shape of Llama 3 8B, with the demonstration model's tokenizer."""
    demo = Path(quire.__file__).parent / "models/demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, directory)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 500_000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))

    def random_weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(0.02).cpu()

    def layer(number: int) -> dict[str, torch.Tensor]:
        prefix, wide = f"model.layers.{number}.", HEADS * DIM
        shapes = {
            "self_attn.q_proj": (wide, HIDDEN), "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, wide),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }  # fmt: skip
        tensors = {f"{prefix}{name}.weight": random_weight(*s) for name, s in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        return tensors

    where: dict[str, str] = {}
    for number in range(layers):
        tensors, file = layer(number), f"layer-{number}.safetensors"
        save_file(tensors, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    ends = {
        "model.embed_tokens.weight": random_weight(VOCAB, HIDDEN),
        "lm_head.weight": random_weight(VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    save_file(ends, directory / "ends.safetensors", metadata={"format": "pt"})
    where |= dict.fromkeys(ends, "ends.safetensors")
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def make_requests(count: int) -> list[tuple[list[int], int]]:
    """(prompt, tokens to generate); exponential lengths, cut off at 2,048."""
    source = random.Random(0)
    lengths = [
        [min(2048, 1 + int(source.expovariate(1 / mean))) for mean in MEANS] for _ in range(count)
    ]
    return [(source.choices(range(100, VOCAB), k=into), out) for into, out in lengths]


class Counter:
    """Keeps count of what the steps of an engine had to read and compute."""

    def __init__(self, llm: LLM) -> None:
        executor: Any = llm.engine.executor
        self.steps = self.tokens = self.context = 0
        executor.submit = self._counting(executor.submit)

    def _counting(self, call: Callable[[Step], Any]) -> Callable[[Step], Any]:
        def count(step: Step) -> Any:
            self.steps += 1
            self.tokens += step.num_tokens
            self.context += sum(chunk.start + len(chunk.token_ids) for chunk in step.chunks)
            return call(step)

        return count


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def best(work: Callable[[], object]) -> float:
    return min(seconds(work) for _ in range(5))


def device_limits() -> tuple[float, float]:
    """Bytes a second of a copy, and operations a second of a large product in bfloat16."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return (
        2 * source.nbytes / best(lambda: target.copy_(source)),
        2 * 8192**3 / best(lambda: square @ square),
    )


def generate(llm: LLM, requests: list[tuple[list[int], int]]) -> int:
    params = [
        SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True) for _, out in requests
    ]
    outputs = llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def measure_quire(directory: Path, num_requests: int) -> float:
    """Output tokens a second; prints what the device would allow."""
    bandwidth, operations = device_limits()
    torch.cuda.empty_cache()
    llm = LLM(directory, device="cuda", max_num_seqs=256)
    requests = make_requests(num_requests)
    generate(llm, requests[:16])
    counter = Counter(llm)
    done: list[int] = []
    taken = seconds(lambda: done.append(generate(llm, requests)))
    weights, kv = llm.capacity.weight_bytes, llm.capacity.kv_bytes_per_token
    embedding = VOCAB * HIDDEN * 2  # is not read, but looked up
    reading = (counter.steps * (weights - embedding) + counter.context * kv) / bandwidth
    computing = counter.tokens * (weights - embedding) / operations  # 2 operations for 2 bytes
    print(
        f"quire: {done[0] / taken:,.0f} output tokens/s in {counter.steps:,} steps. To read "
        f"weights and cache at the speed of a copy would take {reading / taken:.0%} of the time, "
        f"the products alone {computing / taken:.0%}"
    )
    return done[0] / taken


def measure_transformers(directory: Path, num_requests: int) -> float:
    """Output tokens a second of ``generate``, in batches that are padded to their longest.

    What is asked for counts, not what a batch computes after a request's last token. Its own
    continuous batching is no match: with 256 of these requests it had not ended after three
    minutes.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.cuda().eval()
    requests = make_requests(num_requests)

    def serve(some: list[tuple[list[int], int]]) -> None:
        longest = max(len(prompt) for prompt, _ in some)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in some])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p, _ in some])
        most = max(out for _, out in some)
        model.generate(
            input_ids=ids.cuda(),
            attention_mask=mask.cuda(),
            do_sample=False,
            min_new_tokens=most,
            max_new_tokens=most,
            pad_token_id=0,
        )

    serve([(prompt, 4) for prompt, _ in requests[:16]])
    taken = 0.0
    for first in range(0, num_requests, BATCH):
        some = requests[first : first + BATCH]
        taken += seconds(lambda some=some: serve(some))  # type: ignore[misc]
    tokens = sum(out for _, out in requests)
    print(f"transformers, batches of {BATCH}: {tokens / taken:,.0f} output tokens/s")
    return tokens / taken


def measure_steps(directory: Path) -> None:
    """64 sequences decoding, and a prompt beside them in each step."""
    ways: dict[str, dict[str, Any]] = {
        "launched anew": {"enforce_eager": True},
        "async_scheduling off": {"async_scheduling": False},
        "as it comes": {},
    }
    print("| | decodes, ms a step | the GPU idle | and a prompt of 256 tokens | the GPU idle |")
    print("|---|---|---|---|---|")
    for name, options in ways.items():
        gc.collect()
        torch.cuda.empty_cache()
        print(f"| {name} | {' | '.join(measure_way(directory, options))} |", flush=True)


def measure_way(directory: Path, options: dict[str, Any]) -> Iterator[str]:
    """Of decodes, then with prompts: milliseconds a step, the share in which the GPU is idle."""
    llm = LLM(directory, device="cuda", max_num_seqs=65, **options)
    for number in range(64):
        ask(llm, f"decode-{number}", 512, 400)
    for _ in range(60):
        llm.engine.step()
    numbers = count()

    def with_prompt() -> None:
        ask(llm, f"prompt-{next(numbers)}", 256, 1)
        llm.engine.step()

    for step in (llm.engine.step, with_prompt):
        for _ in range(5):
            step()
        taken, idle = step_seconds(step)
        yield f"{taken * 1e3:.2f}"
        yield f"{idle:.1%}"


def ask(llm: LLM, name: str, tokens: int, out: int) -> None:
    """Let a request wait, none of whose tokens are cached."""
    source = random.Random(name)
    params = SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True)
    llm.engine.add_request(name, source.choices(range(100, VOCAB), k=tokens), params, 0.0)


def step_seconds(step: Callable[[], object]) -> tuple[float, float]:
    """Of one of 50 steps, and the share of it in which no kernel runs."""
    from torch.profiler import ProfilerActivity, profile

    def steps() -> None:
        for _ in range(50):
            step()

    taken = seconds(steps) / 50  # without the profiler in the way
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        steps()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return taken, 1 - busy / 50e6 / taken


def measure_recovery(directory: Path) -> None:
    """Swapping 1,024 tokens out and in again against computing them (the paper's figure 19)."""
    from quire.engine.config import EngineConfig
    from quire.execution.gpu.assembly import OnGPU
    from quire.models.loader import load_model
    from quire.models.shape import CacheShape

    device = choose_device("cuda")
    model = load_model(directory, device=device)
    layers = len(model.kv_shapes)
    cache = CacheShape((None,) * layers, (1,) * layers, model.max_positions, False)
    print("| block size | swap, ms | recompute, ms |\n|---|---|---|")
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        # A share that is free beside the model, which is there already; the pool's size is given.
        placement = OnGPU(device, 0.01, enforce_eager=True)
        blocks = 4096 // size
        with torch.inference_mode(), placement.start_up_lock():
            config = EngineConfig(block_size=size, max_num_seqs=1)
            limits = limits_of(config, cache).with_blocks(blocks, blocks)
            placement.executor(model, limits, model.dtype)
            costs = placement.recovery_costs()
        swap = 2 * costs.swap_per_block * 1024 / size
        print(f"| {size} | {swap * 1e3:.2f} | {costs.recompute_per_token * 1024 * 1e3:.2f} |")
        del placement
        gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--only", choices=("throughput", "steps", "recovery"))
    arguments = parser.parse_args()
    try:
        device = choose_device("cuda")
    except QuireError as error:
        print(f"gpu_engine.py needs an NVIDIA GPU: {error}", file=sys.stderr)
        return 1
    print(torch.cuda.get_device_name(device))
    with tempfile.TemporaryDirectory(prefix="quire-") as name:
        directory = Path(name)
        make_model(directory, arguments.layers)
        if arguments.only in (None, "throughput"):
            ours = measure_quire(directory, arguments.requests)
            gc.collect()
            torch.cuda.empty_cache()
            theirs = measure_transformers(directory, arguments.requests)
            print(f"quire / transformers: {ours / theirs:.1f}")
        for part, measure in (("steps", measure_steps), ("recovery", measure_recovery)):
            if arguments.only in (None, part):
                gc.collect()
                torch.cuda.empty_cache()
                measure(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
