"""Models whose layers keep states, on an NVIDIA GPU: Qwen3.5-0.8B's shape, random weights.

    python benchmarks/gpu_hybrid.py                  # all of it: two minutes
    python benchmarks/gpu_hybrid.py --only kernels   # a layer alone
    python benchmarks/gpu_hybrid.py --only engine    # steps, and what the layers with a state take

A decode reads and rewrites its states, whose bytes over a layer's time stand beside those of a
copy. Of a prompt's tokens the time of one counts: they are taken one after another.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from gpu_engine import ask, seconds

import quire
from quire import LLM
from quire.core.errors import QuireError
from quire.execution.device import choose_device
from quire.kernels.gpu import recurrence as launches
from quire.kernels.gpu.kernels import GPUKernels
from quire.kernels.layer_memory import LayerState
from quire.kernels.ops import AttentionBatch, StateSlots
from quire.kernels.recurrence import Convolution, OutputGate, Recurrence

HEADS, DIM, LAYERS, PROMPT, DECODES = 16, 128, 24, 2048, 64
PROGRAMS = ("prepare", "recur", "gate", "keep", "keep_drafts")  # of layers with a state
KERNEL_STEPS = [(1, 1), (8, 1), (64, 1), (256, 1), (1, 512), (1, 2048), (1, 8192), (8, 1024)]


def layer(device: torch.device) -> Recurrence:
    width = HEADS * DIM
    return Recurrence(
        HEADS, HEADS, DIM, DIM, Convolution(torch.randn(4, 3 * width, device=device)),
        decay=-torch.rand(HEADS, device=device), bias=torch.randn(HEADS, device=device), delta=True,
        gate=OutputGate(torch.ones(width, device=device), DIM, 1e-6, first=False),
    )  # fmt: skip


def launched(texts: int, new: int, device: torch.device) -> Callable[[], object]:
    """A layer's step of so many texts, each with so many tokens more."""
    spec, kernels = layer(device), GPUKernels.on(device)
    channels, kept = spec.convolution.kept
    state = LayerState(
        torch.zeros(texts, channels, kept, device=device),
        torch.zeros(texts, *spec.state, device=device),
        torch.zeros(texts, 0, spec.columns, device=device),
    )
    contexts = torch.full((texts,), new + 100, device=device)
    batch = AttentionBatch(
        torch.zeros(texts * new, dtype=torch.int64, device=device),
        tuple(range(0, texts * new + 1, new)), contexts, contexts, (), 16,
        states=StateSlots(torch.arange(texts, device=device)),
    )  # fmt: skip
    x = torch.randn(texts * new, spec.columns, device=device, dtype=torch.bfloat16)
    plan = kernels.plan(batch)
    return lambda: kernels.recur(x, state, spec, plan)


def recorded(work: Callable[[], object]) -> Callable[[], object]:
    """Launched as recorded steps are, so that the host does not count."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            work()
    return graph.replay


def microseconds(texts: int, new: int, device: torch.device) -> float:
    replay = recorded(launched(texts, new, device))
    replay()
    return min(seconds(replay) for _ in range(5)) / 20 * 1e6


def measure_kernels(device: torch.device) -> None:
    print("| texts × tokens | µs a layer | µs a token of one text | GB/s of states |")
    print("|---|---|---|---|")
    for texts, new in KERNEL_STEPS:
        taken = microseconds(texts, new, device)
        moved = 2 * texts * HEADS * DIM * DIM * 4 / taken / 1e3
        print(f"| {texts} × {new} | {taken:.1f} | {taken / new:.2f} | {moved:.0f} |", flush=True)
    usual = launches._NUMBERS_AT_ONCE
    print("\n| numbers of a state a program | 64 × 1, µs | 1 × 2048, µs |\n|---|---|---|")
    for numbers in (512, 1024, 2048, 4096):
        launches._NUMBERS_AT_ONCE = numbers
        found = [microseconds(*step, device) for step in ((64, 1), (1, 2048))]
        print(f"| {numbers} | {found[0]:.1f} | {found[1]:.1f} |", flush=True)
    launches._NUMBERS_AT_ONCE = usual


def make_model(directory: Path, layers: int, device: torch.device) -> None:
    """A checkpoint in that shape, with the demonstration model's tokenizer."""
    import transformers

    kinds = ["linear_attention"] * 3 + ["full_attention"]
    config: Any = transformers.Qwen3_5TextConfig(
        num_hidden_layers=layers, hidden_size=1024, intermediate_size=3584, vocab_size=248_320,
        num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS, linear_key_head_dim=DIM, linear_value_head_dim=DIM,
        linear_conv_kernel_dim=4, layer_types=(kinds * layers)[:layers], tie_word_embeddings=True,
        max_position_embeddings=8192,
    )  # fmt: skip
    auto: Any = transformers.AutoModelForCausalLM
    with device:
        model = auto.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    demo = Path(quire.__file__).parent / "models/demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, directory)


def shares(work: Callable[[], object]) -> tuple[float, float, dict[str, float]]:
    """Milliseconds of all kernels, of those of layers with a state, and of each of these."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    whole, own = 0.0, defaultdict[str, float](float)
    for event in profiler.events() or []:
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        taken = (event.time_range.end - event.time_range.start) / 1e3
        whole += taken
        if event.name in PROGRAMS:
            own[event.name] += taken
    return whole, sum(own.values()), dict(own)


def measure_engine(directory: Path) -> None:
    """A step of decodes, and one of a prompt."""
    llm = LLM(directory, device="cuda", max_num_seqs=DECODES, max_num_batched_tokens=PROMPT)
    numbers = count()

    def prompt() -> None:
        ask(llm, f"prompt-{next(numbers)}", PROMPT, 1)
        while llm.engine.has_work:
            llm.engine.step()

    prompt()
    print("| | ms | of kernels | of layers with a state |\n|---|---|---|---|")
    show(f"a prompt of {PROMPT:,}", min(seconds(prompt) for _ in range(5)), 1, prompt)
    for number in range(DECODES):
        ask(llm, f"decode-{number}", 128, 400)
    for _ in range(20):
        llm.engine.step()

    def decodes() -> None:
        for _ in range(30):
            llm.engine.step()

    show(f"a step of {DECODES} decodes", min(seconds(decodes) for _ in range(3)), 30, decodes)


def show(name: str, taken: float, steps: int, work: Callable[[], object]) -> None:
    whole, own, each = shares(work)
    parts = ", ".join(f"{part} {time / steps:.3f}" for part, time in each.items())
    of_states = f"{own / steps:.2f}: {parts}"
    print(f"| {name} | {taken / steps * 1e3:.2f} | {whole / steps:.2f} | {of_states} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--only", choices=("kernels", "engine"))
    arguments = parser.parse_args()
    try:
        device = choose_device("cuda")
    except QuireError as error:
        print(f"gpu_hybrid.py needs an NVIDIA GPU: {error}", file=sys.stderr)
        return 1
    print(torch.cuda.get_device_name(device))
    if arguments.only in (None, "kernels"):
        with torch.inference_mode():
            measure_kernels(device)
    if arguments.only in (None, "engine"):
        with tempfile.TemporaryDirectory(prefix="quire-") as name:
            make_model(Path(name), arguments.layers, device)
            gc.collect()
            torch.cuda.empty_cache()
            measure_engine(Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
