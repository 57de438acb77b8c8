"""Ways of giving out KV memory side by side, from nothing batched to paging; and the host's memory
as if it were the machine's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import TraceRequest
from quire.engine.work import Work
from quire_lab.reproduction.experiment import Experiment, Finding, Scale
from quire_lab.reproduction.request_batching import serve_in_batches
from quire_lab.reproduction.systems import MAX_MODEL_LEN, SYSTEMS, deployment, requests, serve
from quire_lab.simulation.cost_model import CostModel
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.simulator import Simulator

WASTED: Mapping[str, tuple[float, float]] = {
    "Orca (Max)": (60, 80), "Orca (Pow2)": (60, 80), "Orca (Oracle)": (60, 80), "paged": (0, 4),
}  # fmt: skip
"""Percent of the KV memory, in vLLM's announcement: of systems as they were, and under paging."""

HOST_TIMES = 3
"""Host memory that the pool is extended by, in pools."""


class HostBehind:
    """A cost model in which keys and values that do not fit in the machine's memory come from the
    host.

    That is how a driver's virtual memory works (CUDA's unified memory): a step reads the keys of
    all running sequences, so what does not fit crosses the link in every step. Real drivers do
    worse, since they do not know what the next step reads.
    """

    def __init__(self, costs: CostModel, slots: int, seconds_per_token: float) -> None:
        """slots: tokens that the machine's own memory holds."""
        self._costs = costs
        self._slots = slots
        self._seconds_per_token = seconds_per_token

    def seconds(self, work: Work) -> float:
        beyond = max(0.0, work.prefill_context + work.decode_context - self._slots)
        return self._costs.seconds(work) + beyond * self._seconds_per_token

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return self._costs.recovery_costs(block_size)


def virtual_memory(where: Deployment, workload: Iterable[TraceRequest]) -> SimulationResult:
    """Blocks as fine as a driver's pages, in a pool of which the host holds the larger part."""
    limits = where.under("paged").limits()
    costs = where.cost_model(limits.block_size)
    per_token = costs.recovery_costs(limits.block_size).swap_per_block / limits.block_size
    behind = HostBehind(costs, limits.num_blocks * limits.block_size, per_token)
    extended = limits.with_blocks(limits.num_blocks * (1 + HOST_TIMES))
    return Simulator(extended, behind).run(workload)


def _of_technique(
    name: str, result: SimulationResult, alone: float, over: str
) -> Iterator[Finding]:
    """alone: output tokens a second without batches. over: what is divided by it, in words."""
    usage = result.mean_usage
    taken = usage.capacity - usage.free - usage.cached
    wasted = 100 * (taken - usage.used) / taken
    yield Finding(f"{name}: requests that run at once", (), result.mean_running, "requests")
    yield Finding(f"{name}: largest batch", (), result.most_running, "requests")
    why = "published of all three; of figure 2 they are 61.8 to 79.6" if "Orca" in name else ""
    yield Finding(f"{name}: memory wasted", WASTED.get(name, ()), wasted, "%", why)
    published = (24.0,) if name == "paged" else ()
    why = 'published as "up to 24", over a server that batches nothing' if published else ""
    yield Finding(f"{name}: {over}", published, result.output_rate / alone, "×", why)


def techniques(scale: Scale) -> Experiment:
    """One request at a time, five ways of giving out memory, and paging."""
    where = deployment("llama-13b")

    def line() -> Iterable[TraceRequest]:
        drawn = requests("sharegpt", 1.0, scale.count(1.0, 800), scale.seed)
        return (replace(one, arrival=0.0) for one in drawn)

    tokens = sum(one.output_tokens for one in line())
    alone = tokens / serve_in_batches(line(), 1, where.cost_model(16)).busy_seconds
    served = {system.name: serve(where, system, line()) for system in SYSTEMS}
    paged = served.pop("paged")
    served["host memory behind the machine's"] = virtual_memory(where, line())
    served["paged"] = paged
    batch = where.slots // MAX_MODEL_LEN
    static = serve_in_batches(line(), batch, where.cost_model(16))
    over = "output tokens a second, over one request at a time"
    findings = [
        Finding("one request at a time: output tokens a second", (), alone, "tokens/s"),
        Finding("static batches: largest batch", (), batch, "requests",
                "each has a region for the longest text until the last of its batch has ended"),
        Finding(f"static batches: {over}", (), tokens / static.busy_seconds / alone, "×"),
    ]  # fmt: skip
    for name, result in served.items():
        findings += _of_technique(name, result, alone, over)
    return Experiment(
        "techniques",
        "One by one, in batches, five ways of giving out memory, and paging",
        "A region for the longest text, for a power of two, for the true length; the host's memory "
        "behind the machine's own, as virtual memory; paging. How many requests run at once, and "
        "what is that worth over serving one at a time?",
        "LLaMA-13B on an A100-40, ShareGPT's lengths, all requests at once. Behind the machine's "
        f"memory is {HOST_TIMES} times as much of the host's, which the driver fills and fetches "
        "in pages as fine as blocks: nothing is reserved, but what does not fit crosses the link "
        "in every step, and only that, as if the driver knew what comes next.",
        tuple(findings),
        "What runs at once is what memory lets run, and speed follows it, less than in proportion: "
        "larger batches read more keys. The host's memory lets most requests run and is the worst "
        "of all that batch: each step reads every key, so that the link is what counts, not the "
        "memory's size. To stop a few requests and swap them whole, as Quire does, moves their "
        "keys once and not in every step.",
    )
