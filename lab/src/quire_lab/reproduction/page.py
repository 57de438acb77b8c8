"""The page of all experiments: our figures beside the published ones, and why they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from quire_lab.reports.curves import draw_curves
from quire_lab.reports.page import Page
from quire_lab.reports.pairs import FigurePair, draw_pairs
from quire_lab.reports.style import Picture
from quire_lab.reproduction.experiment import TOLERANCE, Experiment, Finding
from quire_lab.reproduction.systems import FASTER_TRANSFORMER, PAGED, SYSTEMS
from quire_lab.simulation.export import write_json

_TERMS = (
    ("KV cache", "keys and values of all tokens so far, which attention reads for every new token"),
    ("slot", "room for the keys and values of one token"),
    ("block", "16 slots (if nothing else is said) that are given out together; a request's blocks "
              "may be anywhere"),
    ("internal fragmentation", "slots inside what a request holds that no token will ever use"),
    ("external fragmentation", "free memory in pieces too small for what is asked for"),
    ("Orca (Max, Pow2, Oracle)", "the paper's baselines: the same scheduler, with one contiguous "
                                 "region for each request; they differ in how large it is"),
    ("paged", "PagedAttention as Quire does it: the paper's vLLM"),
    ("normalised latency", "time from arrival to last token, divided by output tokens; s/token"),
    ("sustained rate", "requests a second up to which the mean normalised latency stays readable"),
    ("preemption", "a running request gives its memory up for another's growth, and comes back "
                   "later: swapped in from the host, or computed again"),
)  # fmt: skip

_SYSTEMS = (PAGED.name, *(one.name for one in SYSTEMS if one is not PAGED), FASTER_TRANSFORMER)
"""In every chart in the same colour, paging in the blue of our bars."""


class Drawn(NamedTuple):
    """An experiment and its pictures, which take longer than the page and are made once."""

    experiment: Experiment
    pictures: tuple[Picture, ...]

    @classmethod
    def of(cls, experiment: Experiment) -> Drawn:
        return cls(experiment, tuple(_pictures(experiment)))


def write_page(directory: Path, drawn: Sequence[Drawn], how: str) -> Path:
    """Write reproduction.html, its pictures and figures.json; the path of the page.

    how: how much was simulated, and with what seed.

    Raises:
        ConfigError: the directory cannot be written, or matplotlib is missing.
    """
    page = Page("The figures of PagedAttention, reproduced by simulation")
    experiments = [one for one, _ in drawn]
    _introduction(page, experiments, how)
    for one, pictures in drawn:
        page.section(one.title)
        page.heading("What was asked")
        page.paragraph(one.asked)
        page.heading("What was simulated")
        page.paragraph(one.done)
        for picture in pictures:
            page.picture(picture)
        for table in one.tables:
            page.heading(table.title)
            page.table(table.head, table.rows, numbers=range(2, len(table.head)))
        if one.tables:
            page.heading("Figures")
        page.table(
            ("figure", "published", "ours", "unit", "", "remark"),
            [_row(finding) for finding in one.findings],
            numbers=(1, 2),
        )
        page.heading("What it says, and why it differs")
        page.paragraph(one.learned)
    path = page.write(directory, "reproduction.html")
    write_json(
        directory / "figures.json", {"how": how, "experiments": [e.values() for e in experiments]}
    )
    return path


def _introduction(page: Page, experiments: Sequence[Experiment], how: str) -> None:
    page.paragraph(
        'Kwon et al., "Efficient Memory Management for Large Language Model Serving with '
        'PagedAttention" (SOSP 2023), measured how much memory serving systems waste, and how '
        "many more requests fit if memory is given out in blocks. This page repeats those "
        "experiments without a GPU: Quire's own scheduler and allocators run on a virtual clock, "
        "and a cost model says how long each step would take. In charts with bars, orange is what "
        "was published and blue is what came out here. Charts with lines are all simulated, with "
        "paging in blue; what the paper says of them in figures is in the bars beside them."
    )
    page.paragraph(
        "Nothing was tuned to match, and where an assumption of ours decides, the row says so. "
        "Models, pools and step times are derived from the models' "
        "shapes and the machines' data sheets. ShareGPT and Alpaca are not part of Quire: lengths "
        "are drawn from lognormal distributions with the means that the paper prints (161 "
        "tokens in and 338 out; 19 and 58), cut at 2,048 tokens in all; arrivals are a Poisson "
        "process, as in the paper. So memory figures can be expected to agree "
        "closely, ratios between systems roughly, and absolute rates only in their order: a "
        "roofline is faster than the software of 2023."
    )
    page.paragraph(how, note=True)
    findings = [finding for one in experiments for finding in one.findings]
    compared = [one for one in findings if one.agrees is not None]
    agreeing = sum(bool(one.agrees) for one in compared)
    page.cards(
        [
            (f"{len(experiments)}", "experiments"),
            (f"{len(compared)}", "figures with a published one beside them"),
            (f"{agreeing}", f"of them within {TOLERANCE:.0%} of it, or in the published range"),
            (f"{len(compared) - agreeing}", "differ by more; each section says why"),
            (f"{len(findings) - len(compared)}", "more for which nothing was published"),
        ]
    )
    page.heading("Words")
    page.table(("word", "meaning"), _TERMS)
    page.heading("At a glance")
    page.table(
        ("experiment", "compared", "agree", "differ"),
        [
            (
                one.title,
                f"{sum(f.agrees is not None for f in one.findings)}",
                f"{sum(f.agrees is True for f in one.findings)}",
                f"{sum(f.agrees is False for f in one.findings)}",
            )
            for one in experiments
        ],
        numbers=(1, 2, 3),
    )


def _pictures(experiment: Experiment) -> Iterable[Picture]:
    """Curves, and bars in pairs for each unit that has enough published figures."""
    for number, unit in enumerate(experiment.charted, 1):
        pairs = [
            FigurePair(one.what, one.published, one.ours)
            for one in experiment.findings
            if one.unit == unit and one.published
        ]
        name = f"{experiment.key}-pairs-{number}"
        note = "Orange: published. Blue: simulated."
        yield draw_pairs(name, experiment.title, note, unit, pairs)
    if experiment.panels:
        yield draw_curves(
            f"{experiment.key}-curves", experiment.title, experiment.panels_note,
            experiment.panels, known=_SYSTEMS,
        )  # fmt: skip


def _row(finding: Finding) -> tuple[str, ...]:
    verdict = {None: "none published", True: "✓ agrees", False: "≠ differs"}[finding.agrees]
    published = " to ".join(f"{value:,.6g}" for value in finding.published)  # as it was
    verdict = verdict.replace(" ", "\N{NO-BREAK SPACE}")
    return (
        finding.what, published or "–", _figure(finding.ours), finding.unit, verdict, finding.why,
    )  # fmt: skip


def _figure(value: float) -> str:
    """Three or four digits that count."""
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    decimals = 1 if value >= 20 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"
