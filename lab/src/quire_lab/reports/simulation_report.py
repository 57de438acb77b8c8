"""Writes all there is to see of one simulation into a directory."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.protocol import Decision
from quire_lab.reports.chrome_trace import chrome_trace
from quire_lab.reports.curves import Panel, draw_curves
from quire_lab.reports.over_time import PARTS, batch_over_time, memory_over_time
from quire_lab.reports.page import Page, moment_page
from quire_lab.reports.style import Picture
from quire_lab.reports.waterfall import draw_waterfall
from quire_lab.simulation.export import RecordWriter, summary_values, write_json, write_series
from quire_lab.simulation.latencies import Summary
from quire_lab.simulation.result import Instant, SimulationResult

KEPT_RECORDS = 2000
KEPT_DECISIONS = 2000
"""What a simulation should keep for its report, so that a long trace gives no larger one."""

_TABLE_ROWS = 200


def write_report(
    directory: Path,
    result: SimulationResult,
    *,
    title: str,
    facts: Mapping[str, str],
    bytes_per_token: int | None = None,
    rates: Sequence[Panel] = (),
    moment: Instant | None = None,
) -> Path:
    """Write report.html, pictures, CSV, JSON and a Chrome trace; the path of the page.

    facts: what was simulated, for the head of the page.
    bytes_per_token: of keys and values, to give the pool's size in bytes.
    rates: latency against request rate, where more than one rate was simulated.
    moment: for the block map, where there is to be one.

    Raises:
        ConfigError: the directory cannot be written, or matplotlib is missing.
    """
    page = _page(result, title, facts, bytes_per_token, rates, moment)
    path = page.write(directory, "report.html")
    try:
        _write_files(directory, result, facts)
        if moment is not None:
            (directory / "block-map.quire").write_bytes(moment.recording)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {directory}: {error}") from error
    return path


def _page(
    result: SimulationResult,
    title: str,
    facts: Mapping[str, str],
    bytes_per_token: int | None,
    rates: Sequence[Panel],
    moment: Instant | None,
) -> Page:
    page = Page(title)
    page.paragraph(
        "A simulation: the engine's own scheduler and allocator on a virtual clock, with a cost "
        "model in place of the model."
    )
    page.table(("setting", "value"), facts.items())
    page.cards(_headlines(result))
    if result.first_refusal:
        page.paragraph(
            f"{result.num_refused:,} requests were refused. The first: {result.first_refusal}."
        )
    page.section("Where the memory went")
    page.picture(memory_over_time(result, bytes_per_token))
    _memory_table(page, result)
    page.section("Batch size and line")
    page.picture(batch_over_time(result))
    page.section("Latency")
    _latency_table(page, result)
    if rates:
        page.picture(_latency_against_rate(rates))
    page.section("Requests in time")
    page.picture(draw_waterfall(result.records, result.num_finished))
    if moment is not None:
        page.section("Who held which block")
        _block_map(page, moment)
    page.section("Decisions, and why")
    _decisions(page, result)
    page.section("Files beside this page")
    _files(page)
    return page


def _latency_against_rate(rates: Sequence[Panel]) -> Picture:
    return draw_curves(
        "latency", "Latency against request rate",
        "Each point is a simulation of the same requests, arriving faster or slower. Where "
        "latency begins to climb, more arrives than is served.", rates,
    )  # fmt: skip


def _headlines(result: SimulationResult) -> list[tuple[str, str]]:
    efficiency, (_, drafted, accepted) = result.kv_efficiency, result.drafts
    speculation = (
        f"{result.tokens_per_step:.2f}",
        f"tokens of an output a step: {accepted:,} of {drafted:,} drafts were right",
    )
    return [
        (f"{result.num_finished:,}", f"requests finished, {result.num_refused:,} refused"),
        (f"{result.request_rate:.3g} /s", f"requests, over {result.seconds:,.0f} s"),
        (f"{result.output_rate:,.0f} /s", "output tokens"),
        (f"{result.mean_running:.1f}", f"sequences in a step, {result.most_running} at most"),
        ("–" if efficiency is None else f"{efficiency:.1%}", "of the KV memory taken held tokens"),
        (f"{result.preemptions.swaps + result.preemptions.recomputes:,}",
         f"preemptions: {result.preemptions.swaps:,} swaps, "
         f"{result.preemptions.recomputes:,} recomputes"),
        *([speculation] if drafted else []),
    ]  # fmt: skip


def _memory_table(page: Page, result: SimulationResult) -> None:
    capacity = result.num_blocks * result.block_size
    usage = result.mean_usage._asdict()
    page.table(
        ("mean over the time of all steps", "slots", "share of the pool"),
        [(label, f"{usage[name]:,}", f"{usage[name] / capacity:.1%}") for name, label, _ in PARTS],
        numbers=(1, 2),
        colours=[colour for _, _, colour in PARTS],
    )
    cache = result.prefix_cache
    if cache.queries:
        page.paragraph(
            f"Prefix cache: of {cache.queries:,} prompt tokens {cache.hits / cache.queries:.1%} "
            f"were found, {cache.evicted / cache.queries:.1%} had been evicted, "
            f"{cache.tails / cache.queries:.1%} were in last blocks, which are never kept."
        )
    if result.saved_blocks_share:
        page.paragraph(
            f"Sharing among a request's outputs saved {result.saved_blocks_share:.1%} of the "
            "blocks that they would have held without it."
        )


def _latency_table(page: Page, result: SimulationResult) -> None:
    def row(label: str, one: Summary, scale: float, digits: int) -> tuple[str, ...]:
        figures = (one.mean, one.p50, one.p90, one.p99, one.maximum)
        return (label, *(f"{figure * scale:,.{digits}f}" for figure in figures))

    page.table(
        ("", "mean", "median", "p90", "p99", "maximum"),
        [
            row("in line, to admission (s)", result.queueing, 1, 3),
            row("TTFT: arrival to first token (s)", result.ttft, 1, 3),
            row("TPOT: time per output token after it (ms)", result.tpot, 1e3, 1),
            row("ITL: between two tokens of an output (ms)", result.itl, 1e3, 1),
            row("arrival to last token (s)", result.e2e_latency, 1, 3),
            row("the same per output token (ms)", result.normalized_latency, 1e3, 1),
        ],
        numbers=range(1, 6),
    )


def _block_map(page: Page, moment: Instant) -> None:
    size, held = moment.block_size, moment.holdings
    page.paragraph(
        f"At {moment.time:.2f} s, in blocks of {size} tokens, as the page of a server shows them. "
        "Point at a block, or click it to see all that its request holds."
    )
    page.frame("Block map", moment_page(moment.recording))
    page.table(
        ("request", "outputs", "tokens (longest output)", "blocks", "of them shared",
         "blocks without sharing"),
        [
            (one.request_id, f"{one.outputs}", f"{one.tokens:,}", f"{one.blocks:,}",
             f"{one.shared:,}", f"{one.outputs * -(-one.tokens // size):,}")
            for one in held[:_TABLE_ROWS]
        ],
        numbers=range(1, 6),
    )  # fmt: skip
    _say_if_cut(page, len(held), "requests")


def _decisions(page: Page, result: SimulationResult) -> None:
    counts = ", ".join(f"{count:,} × {what}" for what, count in result.num_decisions.items())
    page.paragraph(
        f"In all: {counts or 'none'}. A wait is listed once, not again in every step that it lasts."
    )
    kept = result.decisions
    telling = [one for one in kept if one.decision.what.value != "admit"] or list(kept)
    shown = telling[:_TABLE_ROWS]
    page.table(
        ("time (s)", "decision"), [(f"{time:.3f}", str(one)) for time, one in shown], numbers=(0,)
    )
    page.paragraph(
        f"The first {len(shown):,} that are not plain admissions, of the {len(kept):,} that were "
        "kept; those are all in decisions.csv.",
        note=True,
    )


def _files(page: Page) -> None:
    page.table(
        ("file", "what it holds"),
        [
            ("*.png", "the pictures of this page"),
            ("block-map.quire", "the moment of the block map, for quire replay"),
            ("result.json", "all figures; seconds, slots (tokens) and blocks"),
            ("series.csv", "memory and batch over time"),
            ("requests.csv", f"the first {KEPT_RECORDS:,} requests to end, one a row"),
            ("decisions.csv", f"the first {KEPT_DECISIONS:,} decisions with reasons and figures"),
            ("trace.json", "the same requests and decisions for ui.perfetto.dev or "
                           "chrome://tracing"),
        ],
    )  # fmt: skip


def _say_if_cut(page: Page, count: int, what: str) -> None:
    if count > _TABLE_ROWS:
        page.paragraph(f"The first {_TABLE_ROWS} of {count:,} {what}.", note=True)


def _write_files(directory: Path, result: SimulationResult, facts: Mapping[str, str]) -> None:
    """Write result.json, trace.json, series.csv, requests.csv and decisions.csv."""
    write_json(directory / "result.json", {"facts": dict(facts), **summary_values(result)})
    write_json(directory / "trace.json", chrome_trace(result))
    with (directory / "series.csv").open("w", encoding="utf-8", newline="") as file:
        write_series(file, result.series)
    with (directory / "requests.csv").open("w", encoding="utf-8", newline="") as file:
        write = RecordWriter(file)
        for record in result.records:
            write(record)
    with (directory / "decisions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", *Decision._fields))
        for time, decision in result.decisions:
            writer.writerow((time, decision.what.value, *decision[1:]))
