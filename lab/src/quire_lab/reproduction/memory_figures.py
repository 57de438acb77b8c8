"""The use of memory: table 1 and figures 2, 13 and 15 of the PagedAttention paper."""

from __future__ import annotations

from quire_lab.reproduction.experiment import Experiment, Finding, Scale
from quire_lab.reproduction.slow_steps import BATCHES
from quire_lab.reproduction.systems import (
    MAX_MODEL_LEN,
    PAGED,
    READABLE,
    SYSTEMS,
    MemorySystem,
    deployment,
    requests,
    serve,
    sustained,
)
from quire_lab.simulation.catalogue.machines import GIB
from quire_lab.workload import DATASETS

_GROWING = MemorySystem("contiguous, doubling as it grows", "pow2")


def pool_sizes(scale: Scale) -> Experiment:
    """Table 1."""
    published = {"opt-13b": (12, 15_700), "opt-66b": (21, 9_700), "opt-175b": (264, 60_100)}
    findings = []
    for model, (pool, slots) in published.items():
        where = deployment(model)
        name = f"{where.model.name} on {where.tensor_parallel} × {where.machine.name}"
        findings += [
            Finding(f"KV pool, {name}", (pool,), where.kv_bytes / GIB, "GiB"),
            Finding(f"tokens that it holds, {name}", (slots,), where.slots, "slots"),
        ]
    return Experiment(
        "table-1",
        "Table 1: how many tokens fit",
        "How much memory do the weights leave for keys and values, and for how many tokens?",
        "The pool is derived: 90 % of the machines' memory, less the weights, less the "
        "activations of a step of 2,048 tokens. A slot holds one token's keys and values: 2 × "
        "layers × KV heads × head size × bytes of a number.",
        tuple(findings),
        "A slot's size follows from the model's shape and is the same (OPT-13B: 800 KiB). The "
        "pools differ by what is set aside: the paper does not say how much it keeps for "
        "activations, and we keep 10 % of the memory free, which weighs most where the weights "
        "leave little.",
        charted=("slots",),
    )


def memory_waste(scale: Scale) -> Experiment:
    """Figure 2."""
    published = {"Orca (Max)": 20.4, "Orca (Pow2)": 26.8, "Orca (Oracle)": 38.2, "paged": 96.3}
    findings, parts = [], []
    for system in (*SYSTEMS, _GROWING):
        shares = _shares(system, scale)
        figure = published.get(system.name)
        findings.append(
            Finding(
                f"KV memory that holds tokens, {system.name}",
                () if figure is None else (figure,),
                shares["used"],
                "%",
                f"the rest: {shares['reserved']:.0f} % reserved, {shares['internal']:.0f} % "
                f"internal and {shares['external']:.0f} % external fragmentation",
            )
        )
        if system.kv_allocator != "paged":
            parts.append(shares["used"] / 100)
    for system in SYSTEMS[:-1]:
        used = _shares(system, scale, longest_output=1024)["used"]
        findings.append(
            Finding(f"the same if outputs end at 1,024 tokens, {system.name}", (), used, "%")
        )
    findings.append(
        Finding(
            "least efficiency η of contiguous allocation (an article's 0.15 to 0.40)",
            (0.15, 0.40), min(parts[:-1]), "",
        )
    )  # fmt: skip
    findings.append(
        Finding(
            "highest η of contiguous allocation (the same)", (0.15, 0.40), max(parts[:-1]), "",
            "with the output's length known beforehand, which no server knows",
        )
    )  # fmt: skip
    return Experiment(
        "figure-2",
        "Figure 2: how much of the KV memory holds tokens",
        "Of the KV memory that a server has given out, how much holds keys and values? The rest "
        "is reserved for tokens to come, or lost to fragmentation. Orca reserves one piece of "
        "memory for a whole request: for the longest it could be (Max), for a power of two above "
        "its output (Pow2), or for exactly what it will need (Oracle). Paging reserves one block "
        "of 16 tokens at a time.",
        "OPT-13B on one A100-40 under 2 requests a second with ShareGPT's lengths, once for each "
        "way of allocating; everything else is the same.",
        tuple(findings),
        "The same picture. What is left of the differences comes from the lengths, of which the "
        "paper prints only the means (the rows with outputs of at most 1,024 tokens show how much "
        "a few long ones matter), and from what counts as fragmentation: our contiguous "
        "regions come in powers of two, as a buddy system gives them out, and what rounding up "
        "adds is internal here, external in the paper. Under paging only last blocks have empty "
        "slots, half a block each in the mean. Not in the paper is a region that "
        "doubles as the output outgrows it: it wastes less, and pays by moving.",
        charted=("%",),
    )


def _shares(
    system: MemorySystem, scale: Scale, longest_output: int = MAX_MODEL_LEN - 1
) -> dict[str, float]:
    """Percent of the memory that was given out, by what it did."""
    workload = requests(
        "sharegpt", 2.0, scale.count(2.0, 600), scale.seed, longest_output=longest_output
    )
    usage = serve(deployment("opt-13b"), system, workload).mean_usage
    taken = usage.capacity - usage.free - usage.cached
    return {name: 100 * slots / taken for name, slots in usage._asdict().items()}


def batch_sizes(scale: Scale) -> Experiment:
    """Figure 13."""
    where = deployment("opt-13b")
    findings = []
    for (dataset, rate), figures in BATCHES.items():
        seconds = {"sharegpt": 300, "alpaca": 90}[dataset]
        load = _sustained_by_paging(dataset, rate, seconds, scale)
        for at, why in ((rate, "the paper's rate"), (load, "as loaded as the paper's system was")):
            for system, figure in zip(SYSTEMS, figures, strict=True):
                workload = requests(dataset, at, scale.count(at, seconds), scale.seed)
                result = serve(where, system, workload)
                note = ""
                if system is PAGED and at == rate:
                    ours = result.tpot.mean
                    theirs = figure / rate / DATASETS[dataset][1].mean
                    note = (
                        "batch = rate × time in the system (Little's law): theirs took "
                        f"{1e3 * theirs:.0f} ms a token, ours {1e3 * ours:.0f} ms"
                    )
                findings.append(
                    Finding(
                        f"{dataset}, {at:.3g} req/s ({why}), {system.name}", (figure,),
                        result.mean_running, "requests", note,
                    )
                )  # fmt: skip
    return Experiment(
        "figure-13",
        "Figure 13: how many requests run together",
        "How many requests are in a batch, in the mean, under the same load?",
        "OPT-13B on one A100-40: first at the paper's rates, then at the rate that paging just "
        f"sustains on the simulated machine (a mean of {READABLE} s a token), as the paper's "
        "rates are for its system.",
        tuple(findings),
        "At the paper's rates Orca's batches are the same where memory limits them, and smaller "
        "where it does not: the cost model is a roofline, which knows nothing of Python and of "
        "2023's kernels, so a step is faster than the paper's, requests leave sooner, and fewer "
        "are there at once. Under the same load relative to what the machine can do, memory "
        "decides alone, and every batch is within 13 % of the paper's.",
        charted=("requests",),
    )


def _sustained_by_paging(dataset: str, first: float, seconds: float, scale: Scale) -> float:
    where = deployment("opt-13b")

    def latency(rate: float) -> float:
        workload = requests(dataset, rate, scale.count(rate, seconds), scale.seed)
        return serve(where, PAGED, workload).normalized_latency.mean

    rate, _ = sustained(latency, first, min(1, scale.refinements), scale.furthest)
    return rate


def memory_saved(scale: Scale) -> Experiment:
    """Figure 15."""
    published = {
        ("alpaca", False): (6.1, 9.8),
        ("sharegpt", False): (16.2, 30.5),
        ("alpaca", True): (37.6, 55.2),
        ("sharegpt", True): (44.3, 66.3),
    }
    where = deployment("opt-13b")
    findings = []
    for (dataset, beam_search), figures in published.items():
        rate, seconds = {"sharegpt": (0.5, 200), "alpaca": (8.0, 30)}[dataset]
        for width, figure in ((2, figures[0]), (4, ()), (6, figures[1])):
            count = scale.count(rate, seconds)
            workload = requests(dataset, rate, count, scale.seed, width, beam_search)
            result = serve(where, PAGED, workload)
            what = f"{width} beams" if beam_search else f"{width} samples"
            findings.append(
                Finding(
                    f"{dataset}, {what}",
                    (figure,) if isinstance(figure, float) else (),
                    100 * result.saved_blocks_share,
                    "%",
                )
            )
    return Experiment(
        "figure-15",
        "Figure 15: memory saved by sharing",
        "The outputs of one request share the blocks of their prompt, and beams share what they "
        "have in common after it. How many blocks does that save, of all that they would hold "
        "without sharing?",
        "OPT-13B, blocks of 16 tokens, requests with 2, 4 and 6 outputs or beams. Samples fork "
        "after the prompt and copy the last block when they write into it; beams fork and die "
        "in every step. Counted at each request's peak.",
        tuple(findings),
        "For samples the saving follows from the lengths alone: prompts are a third of "
        "ShareGPT's text and a quarter of Alpaca's. For beams it depends on how soon the "
        "survivors' histories part, which a model's probabilities decide. Ours come from a "
        "seeded stand-in (the likeliest token has probability u^(1/3), u uniform), not from OPT, "
        "so the order of magnitude is what can be compared. The paper gives the figures for 2 "
        "and 6 as the ends of a range, and does not say at which moment it counts: earlier in a "
        "request's life its outputs are shorter, and the shared prompt is more of the whole.",
        charted=("%",),
    )
