"""How many requests a second: figures 12, 14, 16 and 17 of the PagedAttention paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from quire.engine.traces.request import TraceRequest
from quire_lab.reports.curves import Curve, Panel
from quire_lab.reproduction.experiment import Experiment, Finding, Scale
from quire_lab.reproduction.slow_steps import slow_deployment
from quire_lab.reproduction.systems import (
    FASTER_TRANSFORMER,
    MAX_MODEL_LEN,
    ORCA_MAX,
    ORCA_ORACLE,
    PAGED,
    READABLE,
    SYSTEMS,
    MemorySystem,
    batch_latency,
    deployment,
    requests,
    serve,
    sustained,
)
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.workload import DATASETS, Lengths, Synthetic, arrival_times

_NOTE = (
    "Each point is a simulation. The horizontal line is the latency up to which we call a rate "
    "sustained."
)
_SLOW = "with steps as slow as the paper's figure 13 implies"
_Latency = Callable[[float], float]


def basic_sampling_sharegpt(scale: Scale) -> Experiment:
    """Figure 12, (a) to (c)."""
    return _basic_sampling(
        scale, "figure-12-sharegpt", "sharegpt", 300,
        {"opt-13b": 1.5, "opt-66b": 0.7, "opt-175b": 2.0},
        {"Orca (Oracle)": (1.7, 2.7), "Orca (Max)": (2.7, 8.0)},
        up_to=22.0,
    )  # fmt: skip


def basic_sampling_alpaca(scale: Scale) -> Experiment:
    """Figure 12, (d) to (f)."""
    return _basic_sampling(
        scale, "figure-12-alpaca", "alpaca", 60,
        {"opt-13b": 30.0, "opt-66b": 20.0, "opt-175b": 30.0}, {},
    )  # fmt: skip


def _basic_sampling(
    scale: Scale,
    key: str,
    dataset: str,
    seconds: float,
    rates: dict[str, float],
    published: dict[str, tuple[float, ...]],
    up_to: float | None = None,
) -> Experiment:
    """up_to: the most that was published of paging's rate over request-level batching's."""
    findings, panels, most = [], [], 0.0
    for model, first in list(rates.items())[: scale.models]:
        where = deployment(model)

        def workload(rate: float) -> Iterable[TraceRequest]:
            return requests(dataset, rate, scale.count(rate, seconds), scale.seed)

        found, panel = _compare(where, SYSTEMS, workload, first, scale, batches=True)
        panels.append(panel)
        findings += _ratios(model, found, published)
        if FASTER_TRANSFORMER in found:
            most = max(most, found[PAGED.name] / found[FASTER_TRANSFORMER])
    if up_to is not None:
        findings.append(
            Finding(
                f"the most of paging's rate over that of {FASTER_TRANSFORMER}", (up_to,), most, "×",
                f'published as "up to {up_to:g}", over all of its experiments',
            )
        )  # fmt: skip
    name = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}[dataset]
    return Experiment(
        key,
        f"Figure 12: latency against request rate, {name}",
        "As more requests arrive each second, latency grows slowly, until the server cannot keep "
        "up and the queue grows without end. How many requests a second can each system take "
        "before that? Normalised latency is the time from arrival to last token, divided by the "
        "number of output tokens, in the mean over requests.",
        f"Poisson arrivals with {name}'s lengths for {seconds:.0f} s (the paper: one hour), for "
        "each system at rising rates. FasterTransformer is request-level batching: as many "
        "requests as fit at 2,048 tokens each, the next batch when the longest has ended. A rate "
        f"is sustained while the mean is below {READABLE} s a token, about as fast as people read.",
        tuple(findings),
        "Only the allocator differs between paging and the Orcas, so the ratios say what "
        "memory alone is worth. Absolute rates are higher than the paper's: the roofline's steps "
        "are faster (see figure 13). "
        + (
            "The ratio to FasterTransformer depends most on where one draws the line: its "
            "latency is high even at low rates, since short outputs wait for the longest of "
            "their batch."
            if dataset == "sharegpt"
            else "The paper gives no ratios for Alpaca. Requests are so short that Orca (Max), "
            "which reserves 2,048 slots for each, stands far behind, and that on the large "
            "machine memory hardly binds: then the systems come close to each other, as the "
            "paper's figure 12 (f) says too. Here max_num_seqs (256) limits the batch."
        ),
        tuple(panels),
        _NOTE,
        ("×",) if published else (),
    )


def _ratios(
    model: str, found: dict[str, float], published: dict[str, tuple[float, ...]]
) -> list[Finding]:
    """The rate that paging sustains, and its ratios to the others' rates."""
    paged = found[PAGED.name]
    return [
        Finding(f"{model}: rate that paging sustains", (), paged, "req/s"),
        *(
            Finding(
                f"{model}: paging's rate over that of {other}", published.get(other, ()),
                paged / rate, "×",
            )
            for other, rate in found.items()
            if other != PAGED.name
        ),
    ]  # fmt: skip


def parallel_and_beam(scale: Scale) -> Experiment:
    """Figure 14."""
    where = deployment("opt-13b")
    findings, panels = [], []
    published = {(1, False): (1.3,), (6, True): (2.3,)}
    kinds = [(1, False), (2, False), (4, False), (6, False), (2, True), (4, True), (6, True)]
    for width, beam_search in kinds if scale.models > 1 else kinds[:2] + kinds[4:5]:
        workload = partial(_branching, scale, width, beam_search)

        systems = (ORCA_ORACLE, PAGED)
        found, panel = _compare(where, systems, workload, 24 / width, scale, outputs=width)
        name = "one output" if width == 1 else f"{width} {'beams' if beam_search else 'samples'}"
        panels.append(panel._replace(title=name))
        measured = [(found, "", "")]
        if (width, beam_search) in published:
            slow, _ = _compare(
                slow_deployment("opt-13b"), systems, workload, 12 / width, scale, outputs=width
            )
            measured.append((slow, ", slow steps", _SLOW))
        for rates, how, remark in measured:
            findings.append(
                Finding(
                    f"{name}{how}: paging's rate over that of Orca (Oracle)",
                    published.get((width, beam_search), ()),
                    rates[PAGED.name] / rates[ORCA_ORACLE.name],
                    "×",
                    remark,
                )
            )
    return Experiment(
        "figure-14",
        "Figure 14: parallel sampling and beam search",
        "Several outputs of one prompt share its blocks, and beams share even more. How much "
        "more is paging worth then?",
        "OPT-13B with Alpaca's lengths; every request asks for 2, 4 or 6 samples or beams. "
        "Orca's outputs have a region each, and a copy of the prompt in it. Latency is divided "
        "by the tokens of one output.",
        tuple(findings),
        "As in the paper, the advantage grows with the number of outputs, and is largest for "
        "beams. It is larger here from the start, because a roofline's step hardly gets slower "
        "with more sequences in it, so that larger batches pay in full. With steps as slow as "
        "figure 13 says that the paper's were, by the step and by the sequence, one output comes "
        "nearer to the paper's figure, and six beams fall below it: the truth lies between the "
        "two, for what a sequence cost is read off batches without beams. Regions in powers of "
        "two also cost Orca (Oracle) more of such short requests than they may have cost in the "
        "paper.",
        tuple(panels),
        _NOTE,
        ("×",),
    )


def _branching(scale: Scale, width: int, beam_search: bool, rate: float) -> Iterable[TraceRequest]:
    return requests("alpaca", rate, scale.count(rate, 15), scale.seed, width, beam_search)


def shared_prefix(scale: Scale) -> Experiment:
    """Figure 16."""
    where = deployment("llama-13b")
    sentence, translation = Lengths("lognormal", 32, 0.5), Lengths("lognormal", 40, 0.5)
    findings, panels = [], []
    for prefix, figure in ((80, 1.67), (341, 3.58)):

        def workload(rate: float, prefix: int = prefix) -> Iterable[TraceRequest]:
            return Synthetic(
                scale.count(rate, 40), sentence, translation, rate, shared_prefix=prefix,
                seed=scale.seed,
            )  # fmt: skip

        systems = (ORCA_ORACLE, PAGED)
        found, panel = _compare(where, systems, workload, 20.0, scale, caching=True)
        panels.append(panel._replace(title=f"prefix of {prefix} tokens"))
        paper = slow_deployment("llama-13b")
        slow, _ = _compare(paper, systems, workload, 20.0, scale, caching=True)
        for rates, how, remark in ((found, "", ""), (slow, ", slow steps", _SLOW)):
            findings.append(
                Finding(
                    f"prefix of {prefix} tokens{how}: paging's rate over that of Orca (Oracle)",
                    (figure,), rates[PAGED.name] / rates[ORCA_ORACLE.name], "×", remark,
                )
            )  # fmt: skip
    return Experiment(
        "figure-16",
        "Figure 16: a prefix that all requests share",
        "Every request begins with the same instruction and examples (one: 80 tokens, five: "
        "341), then a sentence to translate. Paging keeps the prefix once for all; Orca keeps "
        "and computes it for each.",
        "LLaMA-13B on one A100-40. The paper does not print the lengths of its WMT16 sentences; "
        "32 tokens in and 40 out in the mean are our assumption. The prefix is found by prefix "
        "caching (equal blocks), not registered beforehand as in the paper.",
        tuple(findings),
        "The longer the prefix, the more is saved, in memory and in arithmetic. More than in the "
        "paper, because a roofline's step hardly gets slower with more sequences in it, so that "
        "whatever makes batches larger pays in full. With steps as slow as figure 13 says that "
        "the paper's were, by the step and by the sequence, the gain is near the paper's. It also "
        "depends on the sentences' lengths, which are assumed. Our prefix caching shares full "
        "blocks only: 80 tokens are five blocks, of 341 tokens 336 are shared.",
        tuple(panels),
        _NOTE,
        ("×",),
    )


def chatbot(scale: Scale) -> Experiment:
    """Figure 17."""
    where, longest = deployment("opt-13b"), MAX_MODEL_LEN // 2
    asked, answered = DATASETS["sharegpt"]

    def workload(rate: float) -> Iterable[TraceRequest]:
        """Prompts are the last ``longest`` tokens of a conversation of up to eight turns."""
        random = Random(scale.seed)
        arrivals = arrival_times(Random(scale.seed + 1), rate)
        for _ in range(scale.count(rate, 300)):
            turns = random.randint(1, 8)
            history = sum(asked.draw(random) + answered.draw(random) for _ in range(turns - 1))
            prompt = min(longest, history + asked.draw(random))
            yield TraceRequest(next(arrivals), prompt, min(longest, answered.draw(random)))

    found, panel = _compare(where, SYSTEMS, workload, 1.0, scale)
    slow, _ = _compare(slow_deployment("opt-13b"), SYSTEMS, workload, 0.5, scale)
    findings = [Finding("rate that paging sustains", (), found[PAGED.name], "req/s")]
    findings += [
        Finding(
            f"paging's rate over that of {name}{how}", (2.0,), rates[PAGED.name] / rate, "×", why
        )
        for rates, how, why in ((found, "", ""), (slow, ", slow steps", _SLOW))
        for name, rate in rates.items()
        if name != PAGED.name
    ]
    return Experiment(
        "figure-17",
        "Figure 17: a chatbot",
        "Prompts are long: the history of the conversation and the last question, cut to the "
        "last 1,024 tokens. Nothing is kept between turns. How many requests a second?",
        "OPT-13B on one A100-40. Conversations of one to eight turns (assumed; the paper takes "
        "ShareGPT's) with ShareGPT's lengths, answers of at most 1,024 tokens.",
        tuple(findings),
        "As in the paper the three Orcas behave nearly alike, because most requests reserve the "
        "same: a prompt of up to 1,024 tokens and an output of up to 1,024 go into 2,048 slots. "
        "How many prompts are cut at 1,024 depends on the number of turns, which is assumed. "
        "Paging gains less than in the paper: computing such a prompt takes as long as several "
        "steps of decoding, and that is not saved by memory. Slower steps, of which prompts are "
        "a smaller part, bring it a little nearer.",
        (panel._replace(title="OPT-13B, chatbot"),),
        _NOTE,
        ("×",),
    )


def _compare(
    where: Deployment,
    systems: Iterable[MemorySystem],
    workload: Callable[[float], Iterable[TraceRequest]],
    first: float,
    scale: Scale,
    *,
    batches: bool = False,
    caching: bool = False,
    outputs: int = 1,
) -> tuple[dict[str, float], Panel]:
    """The rate that each system sustains, and their curves.

    batches: with request-level batching too. caching: paging finds equal prefixes.
    outputs: of each request; latency is divided by the tokens of one.
    """
    lines: dict[str, tuple[_Latency, float]] = {}
    if batches:
        lines[FASTER_TRANSFORMER] = (lambda rate: batch_latency(where, workload(rate)), first / 5)
    for system in systems:

        def latency(rate: float, system: MemorySystem = system) -> float:
            cached = caching and system is PAGED
            result = serve(where, system, workload(rate), enable_prefix_caching=cached)
            return outputs * result.normalized_latency.mean

        lines[system.name] = (latency, first / 2 if system is ORCA_MAX else first)
    found, curves = {}, []
    for name, (of_rate, start) in lines.items():
        found[name], points = sustained(of_rate, start, scale.refinements, scale.furthest)
        curves.append(Curve(name, points))
    panel = Panel(
        f"{where.model.name}, {where.tensor_parallel} × {where.machine.name}",
        "request rate (req/s)", "normalised latency (s/token)", tuple(curves), 0.6,
        (READABLE, f"{READABLE:g} s/token"),
    )  # fmt: skip
    return found, panel
