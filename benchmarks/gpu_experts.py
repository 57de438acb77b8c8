"""Mixtures of experts on an NVIDIA GPU: their products against the device's limits, and steps.

    python benchmarks/gpu_experts.py                    # all of it, in the shape of Qwen3-30B-A3B
    python benchmarks/gpu_experts.py --only products    # or steps
    python benchmarks/gpu_experts.py --layers 4         # of the model whose steps are timed
    python benchmarks/gpu_experts.py --tune             # which sizes of tiles are the fastest

Weights are random. Products are launched as a CUDA graph over several layers, so that no weight is
still in the device's cache; which experts rows choose is drawn.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_engine import ask, best, device_limits, seconds, step_seconds
from safetensors.torch import save_file
from torch import Tensor

import quire
from quire import LLM
from quire.core.errors import QuireError
from quire.execution.device import choose_device
from quire.execution.gpu.graphs import CUDARecorder
from quire.kernels.mlps import Activation, Experts, Routing
from quire.models.decoder import DecoderModel
from quire.models.linear import PlainLinear

HIDDEN, INNER, EXPERTS, CHOSEN = 2048, 768, 128, 8
VOCAB, HEADS, KV_HEADS, DIM = 151_936, 32, 4, 128
EXPERT_BYTES = 3 * HIDDEN * INNER * 2
DECODES, PROMPT = (1, 16, 64, 256), 2048
LAYERS = 4  # of the products
REPLAYS = 10


def random_weight(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(0.02)


def make_experts() -> Experts:
    return Experts(
        router=PlainLinear(random_weight(EXPERTS, HIDDEN)),
        up=tuple(map(PlainLinear, random_weight(EXPERTS, 2 * INNER, HIDDEN))),
        down=tuple(map(PlainLinear, random_weight(EXPERTS, HIDDEN, INNER))),
        activation=Activation("silu", True),
        routing=Routing(CHOSEN, True),
    )


def replay_seconds(work: Callable[[], Tensor]) -> float:
    """Of one of several replays of what ``work`` launches."""
    replay = CUDARecorder().record(work)

    def replays() -> None:
        for _ in range(REPLAYS):
            replay()

    replays()
    return best(replays) / REPLAYS


class Layers:
    """Several layers' experts, each with a choice and rows of its own."""

    def __init__(self) -> None:
        from quire.kernels.gpu.experts import GPUExperts
        from quire.kernels.gpu.kernels import GPUKernels

        self.kernels = GPUKernels.on(torch.device("cuda", 0))
        self.capability = torch.cuda.get_device_capability()
        self.layers = [make_experts() for _ in range(LAYERS)]
        self.products = [GPUExperts(one, "silu") for one in self.layers]

    def choose(self, rows: int) -> None:
        """From now on, so many rows."""
        self.rows = [torch.randn(rows, HIDDEN, device="cuda").bfloat16() for _ in self.layers]
        numbers = torch.rand(LAYERS, rows, EXPERTS, device="cuda")
        self.chosen = list(numbers.argsort(2)[..., :CHOSEN].to(torch.int16).contiguous())
        self.shares = torch.full((rows, CHOSEN), 1 / CHOSEN, device="cuda")
        self.experts_met = sum(len(one.unique()) for one in self.chosen) / LAYERS

    def multiply(self, tile: Any = None) -> float:
        """Seconds of a layer's products, of tiles that have this size or the table's."""
        from quire.kernels.gpu.tiles import choose_product_tile

        each = self.chosen[0].numel() / EXPERTS
        size = tile or choose_product_tile(self.capability, torch.bfloat16, each)

        def work() -> Tensor:
            for products, x, chosen in zip(self.products, self.rows, self.chosen, strict=True):
                parts = products.parts(x, chosen, self.shares, size)
                found = products.add_up(parts, self.shares, None, None)
            return found

        return replay_seconds(work) / LAYERS

    def mix(self) -> float:
        """Seconds of a layer's whole mixture, with routing."""

        def work() -> Tensor:
            for experts, x in zip(self.layers, self.rows, strict=True):
                found = self.kernels.mix(x, experts)
            return found

        return replay_seconds(work) / LAYERS


def grouped_seconds(layers: Layers) -> float | None:
    """Of PyTorch's own grouped products of one layer, the rows sorted already; None: there are
    none.
    """
    grouped: Any = getattr(torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None))
    if grouped is None:
        return None
    experts = layers.layers[0]
    up, down = (
        torch.stack([one.weight for one in side]).transpose(1, 2)  # type: ignore[attr-defined]
        for side in (experts.up, experts.down)
    )
    counts = torch.bincount(layers.chosen[0].flatten().int(), minlength=EXPERTS)
    ends = counts.cumsum(0).to(torch.int32)
    x = layers.rows[0].repeat_interleave(CHOSEN, 0)

    def work() -> Tensor:
        inner = layers.kernels.activate(grouped(x, up, offs=ends), experts.activation)
        found: Tensor = grouped(inner, down, offs=ends)
        return found

    try:
        return replay_seconds(work)
    except RuntimeError as error:
        print(f"(grouped_mm: {str(error).splitlines()[0]})")
        return None


def dense_seconds() -> float:
    """Of two products of as many operations as a prompt's, by one expert."""
    x = torch.randn(PROMPT * CHOSEN, HIDDEN, device="cuda").bfloat16()
    inner = torch.randn(PROMPT * CHOSEN, INNER, device="cuda").bfloat16()
    up, down = random_weight(2 * INNER, HIDDEN), random_weight(HIDDEN, INNER)

    def work() -> Tensor:
        torch.nn.functional.linear(x, up)
        return torch.nn.functional.linear(inner, down)

    return replay_seconds(work)


@torch.inference_mode()
def measure_products() -> None:
    bandwidth, _ = device_limits()
    torch.cuda.empty_cache()
    layers = Layers()
    print(f"a copy: {bandwidth / 1e12:.2f} TB/s; one layer of {EXPERTS} experts:")
    print("| rows | experts | products, µs | of a copy's bandwidth | with routing, µs |")
    print("|---|---|---|---|---|")
    for rows in DECODES:
        layers.choose(rows)
        taken, whole = layers.multiply(), layers.mix()
        share = layers.experts_met * EXPERT_BYTES / bandwidth / taken
        print(
            f"| {rows} | {layers.experts_met:.0f} | {taken * 1e6:.0f} | {share:.0%} "
            f"| {whole * 1e6:.0f} |",
            flush=True,
        )
    layers.choose(PROMPT)
    taken, whole, dense = layers.multiply(), layers.mix(), dense_seconds()
    operations = PROMPT * CHOSEN * EXPERT_BYTES
    print(
        f"prompt of {PROMPT}: products {taken * 1e6:.0f} µs ({operations / taken / 1e12:.0f} "
        f"TFLOP/s), with routing {whole * 1e6:.0f}; dense, as many operations: {dense * 1e6:.0f} "
        f"µs ({dense / taken:.0%})",
        flush=True,
    )
    for rows in (64, PROMPT):
        layers.choose(rows)
        theirs = grouped_seconds(layers)
        if theirs is not None:
            print(f"PyTorch's grouped_mm, {rows} rows sorted already: {theirs * 1e6:.0f} µs")


@torch.inference_mode()
def tune() -> None:
    """The fastest sizes for each number of rows, and what the table's take."""
    from quire.kernels.gpu.tiles import ProductTile

    layers = Layers()
    for rows in (*DECODES, PROMPT):
        layers.choose(rows)
        each = rows * CHOSEN / EXPERTS
        heights = [height for height in (16, 32, 64, 128) if each / 4 <= height <= 8 * each + 16]
        found = []
        for shape in product(heights, (64, 128, 256), (64, 128), (4, 8), (3, 4)):
            height, columns, depth, warps, _ = shape
            large = height * columns >= 128 * 128
            if large != (warps == 8) or (height + columns) * depth > 256 * 128:
                continue
            tile = ProductTile(*shape)
            try:
                found.append((layers.multiply(tile), tile))
            except Exception as error:  # too large for the device
                print(f"{tuple(tile)}: {str(error).splitlines()[0]}", file=sys.stderr)
        best_first = sorted(found)[:4]
        print(f"{rows} rows ({each:g} each); the table's: {layers.multiply() * 1e6:.0f} µs")
        for taken, tile in best_first:
            print(f"    {taken * 1e6:.0f} µs: {tuple(tile)}", flush=True)


def make_model(directory: Path, layers: int) -> None:
    """A checkpoint in the shape of Qwen3-30B-A3B, with the demonstration model's tokenizer."""
    demo = Path(quire.__file__).parent / "models/demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, directory)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "moe_intermediate_size": INNER,
        "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_theta": 1_000_000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "attention_bias": False, "use_sliding_window": False,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    where: dict[str, str] = {}

    def save(file: str, tensors: dict[str, Tensor]) -> None:
        save_file(tensors, directory / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, file))

    for number in range(layers):
        save(f"layer-{number}.safetensors", layer_tensors(f"model.layers.{number}."))
    ends = {
        "model.embed_tokens.weight": random_weight(VOCAB, HIDDEN).cpu(),
        "lm_head.weight": random_weight(VOCAB, HIDDEN).cpu(),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    save("ends.safetensors", ends)
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def layer_tensors(prefix: str) -> dict[str, Tensor]:
    wide, narrow = HEADS * DIM, KV_HEADS * DIM
    shapes = {
        "self_attn.q_proj": (wide, HIDDEN), "self_attn.k_proj": (narrow, HIDDEN),
        "self_attn.v_proj": (narrow, HIDDEN), "self_attn.o_proj": (HIDDEN, wide),
        "mlp.gate": (EXPERTS, HIDDEN),
    }  # fmt: skip
    tensors = {f"{prefix}{name}.weight": random_weight(*s).cpu() for name, s in shapes.items()}
    for name, shape in (
        ("gate_proj", (INNER, HIDDEN)),
        ("up_proj", (INNER, HIDDEN)),
        ("down_proj", (HIDDEN, INNER)),
    ):
        for number, weight in enumerate(random_weight(EXPERTS, *shape).cpu()):
            tensors[f"{prefix}mlp.experts.{number}.{name}.weight"] = weight.clone()
    for name, width in (
        ("input_layernorm", HIDDEN),
        ("post_attention_layernorm", HIDDEN),
        ("self_attn.q_norm", DIM),
        ("self_attn.k_norm", DIM),
    ):
        tensors[f"{prefix}{name}.weight"] = torch.ones(width, dtype=torch.bfloat16)
    return tensors


@contextmanager
def the_plain_way() -> Iterator[None]:
    """Meanwhile experts are computed one by one, as they are chosen, and nothing is recorded."""
    from quire.kernels.gpu.kernels import GPUKernels
    from quire.kernels.plain import mixed

    def mix(kernels: Any, x: Tensor, experts: Experts, routed: Tensor | None = None) -> Tensor:
        return mixed(x, experts, kernels, routed)

    before = GPUKernels.mix, DecoderModel.replayable
    GPUKernels.mix, DecoderModel.replayable = mix, False  # type: ignore[method-assign]
    try:
        yield
    finally:
        GPUKernels.mix, DecoderModel.replayable = before  # type: ignore[method-assign]


def decode_seconds(directory: Path, *, profiled: bool, **options: Any) -> tuple[float, float]:
    """Of a step of 64 decodes, and the share in which no kernel runs (0 if not profiled)."""
    llm = LLM(directory, device="cuda", max_num_seqs=64, **options)
    for number in range(64):
        ask(llm, f"decode-{number}", 128, 400)
    for _ in range(30):
        llm.engine.step()
    if profiled:
        return step_seconds(llm.engine.step)

    def steps() -> None:
        for _ in range(10):
            llm.engine.step()

    return seconds(steps) / 10, 0.0


def measure_steps(directory: Path) -> None:
    print("| 64 decodes | ms a step | the GPU idle |\n|---|---|---|")
    with the_plain_way():
        taken, _ = decode_seconds(directory, profiled=False)
    print(f"| expert by expert | {taken * 1e3:.2f} | |", flush=True)
    for name, options in (("launched anew", {"enforce_eager": True}), ("as it comes", {})):
        gc.collect()
        torch.cuda.empty_cache()
        taken, idle = decode_seconds(directory, profiled=True, **options)
        print(f"| {name} | {taken * 1e3:.2f} | {idle:.0%} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--only", choices=("products", "steps"))
    parser.add_argument("--tune", action="store_true", help="sizes of tiles; nothing else")
    arguments = parser.parse_args()
    try:
        device = choose_device("cuda")
    except QuireError as error:
        print(f"gpu_experts.py needs an NVIDIA GPU: {error}", file=sys.stderr)
        return 1
    print(torch.cuda.get_device_name(device))
    if arguments.tune:
        tune()
        return 0
    if arguments.only in (None, "products"):
        measure_products()
        gc.collect()
        torch.cuda.empty_cache()
    if arguments.only in (None, "steps"):
        with tempfile.TemporaryDirectory(prefix="quire-") as name:
            make_model(Path(name), arguments.layers)
            measure_steps(Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
