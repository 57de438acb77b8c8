"""The size of a block, and what preemption costs: figures 18 (b) and 19 of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from quire.core.protocol import RecoveryCosts
from quire.engine.work import Work
from quire_lab.reports.curves import Curve, Panel
from quire_lab.reproduction.experiment import Experiment, Finding, Scale
from quire_lab.reproduction.systems import PAGED, deployment, requests, serve
from quire_lab.simulation.cost_model import CostModel
from quire_lab.simulation.planning.deployment import Deployment

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Tokens in a block."""

READ_SLOWER = (1.20, 1.26)
"""Attention over blocks of 16 against contiguous memory on the paper's GPU: figure 18 (a)."""

READ_SLOWER_HERE = {"9 heads on 3 of 64": 1.06, "32 heads on 8 of 128": 1.26}
"""The same of our C++, 4,096 keys in bf16: ``benchmarks/attention.py --only sizes``, processor time
on an AMD Zen 5. Of blocks that are no multiple of 16 it is 10 to 30, which is why there are none
by default."""

MOST_SLOW = 32
"""Blocks up to which that is simulated; in larger ones it is lost."""

COPY_SECONDS = 1e-5
"""What a copy between host and device costs before its first byte, about: a call of
cudaMemcpyAsync. The roofline knows bytes only, and swapping would not depend on the block size."""

_RECOVERED = 1024  # tokens of the request that is brought back


class _Load(NamedTuple):
    """good: sizes that the paper finds good for it, from and to."""

    dataset: str
    rate: float
    seconds: float
    good: tuple[float, float]


_LOADS = (_Load("sharegpt", 3.4, 150, (16, 128)), _Load("alpaca", 70.0, 60, (16, 32)))


class PieceByPiece:
    """A cost model in which a swapped block is copied in a piece for each of ``pieces``."""

    def __init__(self, costs: CostModel, pieces: int) -> None:
        self._costs = costs
        self._block_seconds = pieces * COPY_SECONDS

    def seconds(self, work: Work) -> float:
        return self._costs.seconds(work) + work.swapped_blocks * self._block_seconds

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        costs = self._costs.recovery_costs(block_size)
        return RecoveryCosts(costs.swap_per_block + self._block_seconds, costs.recompute_per_token)


def block_sizes(scale: Scale) -> Experiment:
    """Figure 18 (b)."""
    roofline = deployment("opt-13b")
    slower = sum(READ_SLOWER) / 2 - 1
    machine = replace(roofline.machine, block_tokens=slower * 16)
    as_published = replace(roofline, machine=machine)
    findings = [
        Finding(
            f"figure 18 (a): attention over blocks of 16 over contiguous, on a CPU, {shape}",
            READ_SLOWER, ratio, "×", "measured, and published for a GPU",
        )
        for shape, ratio in READ_SLOWER_HERE.items()
    ]  # fmt: skip
    panels = []
    for load in _LOADS:
        latency, slow = (
            _by_size(where, load, most, scale)
            for where, most in ((roofline, SIZES[-1]), (as_published, MOST_SLOW))
        )
        findings += _size_findings(load, latency, slow)
        curves = (
            Curve("bytes alone", tuple(latency.items())),
            Curve("as slow as figure 18 (a)", tuple(slow.items())),
        )
        title, axis = f"{load.dataset}, {load.rate:g} req/s", "normalised latency (ms/token)"
        panels.append(Panel(title, "block size (tokens)", axis, curves, doubling=True))
    return Experiment(
        "figure-18b",
        "Figure 18 (b): the size of a block",
        "Small blocks waste little memory; large ones are read and copied faster. Which size "
        "serves best?",
        "OPT-13B near the load that it just sustains, with blocks of 1 to 256 tokens in a pool "
        "of the same size: with a roofline, which counts bytes alone, and with one that reads "
        f"blocks of up to {MOST_SLOW} as slowly as figure 18 (a) says, {100 * slower:.0f} % at 16 "
        "tokens and in proportion to their number.",
        tuple(findings),
        "Large blocks waste memory in every last block, and Alpaca's short requests feel it "
        "first, as in the paper. Near the limit of what the machine can take, a little less "
        "memory means a long line, hence the steep right ends. What small blocks cost does not "
        "show where bytes alone count; it does where they are read as slowly as figure 18 (a) "
        "says. That figure is of two kernels of 2023, of which one knew no blocks.",
        tuple(panels),
        "Lower is better.",
    )


def _by_size(where: Deployment, load: _Load, most: int, scale: Scale) -> dict[float, float]:
    """Milliseconds a token, by the size of a block up to ``most``."""
    count = scale.count(load.rate, load.seconds)
    latency = {}
    for size in SIZES:
        if size <= most:
            workload = requests(load.dataset, load.rate, count, scale.seed)
            result = serve(where, PAGED, workload, block_size=size)
            latency[float(size)] = 1e3 * result.normalized_latency.mean
    return latency


def _size_findings(
    load: _Load, latency: Mapping[float, float], slow: Mapping[float, float]
) -> Iterator[Finding]:
    dataset, best = load.dataset, min(latency.values())
    largest = max(size for size, value in latency.items() if value <= 1.05 * best)
    yield Finding(f"{dataset}: largest block within 5 % of the best", load.good, largest, "tokens")
    for size in (16.0, 64.0, 256.0):
        title = f"{dataset}: latency with blocks of {size:g} over the best"
        yield Finding(title, (), latency[size] / best, "×")
    yield Finding(
        f"{dataset}: latency with blocks of 1 over blocks of 16, read as slowly as figure 18 (a) "
        "says", (), slow[1.0] / slow[16.0], "×",
        f"{latency[1.0] / latency[16.0]:.2f} where only bytes count",
    )  # fmt: skip


_BySize = dict[float, float]


def _swap_and_recompute(
    where: Deployment, pieces: int, scale: Scale
) -> tuple[dict[str, _BySize], dict[str, _BySize]]:
    """Milliseconds to bring one request back; milliseconds a token where many give way."""
    ways: dict[str, _BySize] = {"swap": {}, "recompute": {}}
    loads: dict[str, _BySize] = {"swap": {}, "recompute": {}}
    space = 2 * where.kv_bytes / 2**30
    for size in SIZES:
        costs = PieceByPiece(where.cost_model(size), pieces)
        recovery = costs.recovery_costs(size)
        blocks = -(-_RECOVERED // size)
        ways["swap"][size] = 2e3 * blocks * recovery.swap_per_block
        ways["recompute"][size] = 1e3 * _RECOVERED * recovery.recompute_per_token
        for mode, latency in loads.items():
            workload = requests("sharegpt", 4.0, scale.count(4.0, 200), scale.seed)
            result = serve(
                replace(where, costs=costs), PAGED, workload, block_size=size,
                preemption_mode=mode, swap_space=space if mode == "swap" else 0.0,
            )  # fmt: skip
            latency[size] = 1e3 * result.normalized_latency.mean
    return ways, loads


def swap_or_recompute(scale: Scale) -> Experiment:
    """Figure 19."""
    where = deployment("opt-13b")
    pieces = 2 * where.model.num_layers  # keys and values of each layer are separate
    ways, loads = _swap_and_recompute(where, pieces, scale)
    swap, recompute = ways["swap"], ways["recompute"]
    findings = (
        Finding(
            "most that recomputing costs over swapping, all sizes", (1.2,),
            max(recompute[size] / swap[size] for size in swap), "×",
            'published as "never higher than 20 %" above',
        ),
        Finding("swapping blocks of 1 over blocks of 16", (), swap[1] / swap[16], "×"),
        *(
            Finding(
                f"latency with recomputing over that with swapping, blocks of {size}", (1.0,),
                loads["recompute"][size] / loads["swap"][size], "×",
                'published: from 16 to 64 "comparable"',
            )
            for size in (16, 32, 64)
        ),
    )  # fmt: skip
    return Experiment(
        "figure-19",
        "Figure 19: swapping against recomputing",
        "A request that had to give way is brought back from host memory, or computed again. "
        "Which is cheaper, for which block size?",
        f"Left: one request of {_RECOVERED:,} tokens, out and back, or computed again in one "
        "step. Right: OPT-13B under more load than it sustains, so that requests give way all "
        f"the time. A block is copied in {pieces} pieces (keys and values of each layer); each "
        f"is taken to cost {1e6 * COPY_SECONDS:.0f} µs before its first byte, which is typical, "
        "and not published.",
        findings,
        "The paper's shape: recomputing does not depend on the block size; swapping small "
        "blocks is slow because of many small copies, and from 16 to 64 tokens the two serve "
        "alike. Where the lines on the left cross depends on the cost of a copy and on the bus, "
        "for which the paper prints no figures: with 25 GB/s one way, swapping large blocks is "
        "cheaper here than there. On the right both lines rise for large blocks, because those "
        "waste memory.",
        (
            Panel(
                f"one request of {_RECOVERED:,} tokens", "block size (tokens)", "time (ms)",
                tuple(Curve(way, tuple(by_size.items())) for way, by_size in ways.items()),
                doubling=True,
            ),
            Panel(
                "ShareGPT, 4 req/s", "block size (tokens)", "normalised latency (ms/token)",
                tuple(Curve(way, tuple(by_size.items())) for way, by_size in loads.items()),
                doubling=True,
            ),
        ),
        "Lower is better.",
    )  # fmt: skip
