"""A layer of experts as one operation, beside its products one by one.

    python benchmarks/experts.py                       # Qwen3-MoE of about 1 GB in int4
    python benchmarks/experts.py --forms bfloat16 w8a8 --rows 1 4 32

The shape is that of a Qwen3-MoE with 1024 inputs and 64 experts of 384, of which a token goes
through 8. Layers take turns, so that caches hold none of them, and so do the ways to compute them;
the fastest of several turns counts. Printed are:

    distinct  experts that the rows of a layer chose
    read      bytes of their weights and the router's, over those of the experts alone
    memory    bytes a second, over what the machine reads with as many threads
    dense     products a second, over those of one expert that has all rows, from caches
    loop      seconds of each expert's products one after the other, over those of one operation
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.mlps import Activation, Experts, Routing
from quire.kernels.plain import mixed, route
from quire.kernels.products import PackedWeight, Products
from quire.models.linear.packed import pack
from quire.models.linear.rounding import Quantization, round_weight

HIDDEN, INNER, MANY, CHOSEN = 1024, 384, 64, 8
_SWIGLU = Activation("silu", gated=True)
_READ_BYTES = 256 << 20


class Measured(NamedTuple):
    """Seconds of a layer, the fastest of several turns."""

    together: float
    loop: float
    dense: float  # as many rows as go to all experts, through one


def make_layer(products: Products, form: str) -> Experts:
    def weight(outputs: int, inputs: int) -> PackedWeight:
        values = (torch.randn(outputs, inputs) / inputs**0.5).bfloat16()
        stored = values if form == "bfloat16" else round_weight(values, Quantization(form), False)
        packed = pack(products, stored, None)
        assert isinstance(packed, PackedWeight)
        return packed

    router = torch.randn(MANY, HIDDEN).bfloat16()
    return Experts(
        router=PackedWeight.from_floats(products, router, None),
        up=tuple(weight(2 * INNER, HIDDEN) for _ in range(MANY)),
        down=tuple(weight(HIDDEN, INNER) for _ in range(MANY)),
        activation=_SWIGLU,
        routing=Routing(CHOSEN, True),
    )


def bytes_of(weights: Sequence[object]) -> int:
    return sum(weight.nbytes for weight in weights if isinstance(weight, PackedWeight))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def memory_rate(turns: int) -> float:
    """Bytes a second that all threads read."""
    numbers = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    return numbers.nbytes / min(timed(numbers.sum) for _ in range(turns))


def measure(kernels: CPUKernels, layers: Sequence[Experts], x: Tensor, turns: int) -> Measured:
    def dense() -> None:
        up, down = layers[0].up[0], layers[0].down[0]
        for _ in layers:
            down(kernels.activate(up(many), _SWIGLU))

    def through(mix: Callable[[Tensor, Experts], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for layer in layers:
                mix(x, layer)

        return run

    many = x.repeat_interleave(CHOSEN, dim=0)
    ways = (
        through(kernels.mix),
        through(lambda x, layer: mixed(x, layer, kernels)),
        dense,
    )
    turned = [[timed(way) for way in ways] for _ in range(turns)]
    best = [min(seconds) for seconds in zip(*turned, strict=True)]
    return Measured(*(seconds / len(layers) for seconds in best))


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument(
        "--forms",
        nargs="+",
        default=["int4"],
        choices=["bfloat16", *(one.value for one in Quantization)],
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 256])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    kernels, products = CPUKernels(), Products()
    names = ("form", "rows", "distinct", "read", "memory", "dense", "loop", "us a layer")
    print("".join(f"{name:>11}" for name in names))
    for form in arguments.forms:
        layers = [make_layer(products, form) for _ in range(arguments.layers)]
        expert = bytes_of((layers[0].up[0], layers[0].down[0]))
        for rows in arguments.rows:
            x = torch.randn(rows, HIDDEN).bfloat16()
            chosen = (route(layer.router.floats(x), Routing(CHOSEN, True))[0] for layer in layers)
            distinct = sum(len(set(one.flatten().tolist())) for one in chosen) / len(layers)
            found, rate = measure(kernels, layers, x, arguments.turns), memory_rate(arguments.turns)
            needed = distinct * expert
            read = needed + bytes_of((layers[0].router,))
            figures = (
                f"{distinct:.1f}",
                f"{read / needed:.2f}",
                f"{read / found.together / rate:.0%}",
                f"{found.dense / found.together:.0%}",
                f"{found.loop / found.together:.2f}",
                f"{found.together * 1e6:,.0f}",
            )
            print("".join(f"{text:>11}" for text in (form, str(rows), *figures)), flush=True)


if __name__ == "__main__":
    main()
