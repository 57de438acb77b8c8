"""An evaluation as a table, a sentence, a picture and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.tools.commands.text import size, table
from quire_lab.commands.text import number, percent
from quire_lab.evaluation import Evaluation, FormResult
from quire_lab.reports.style import BLUE, GREY, VERMILLION, Picture, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD = 0.005, 0.96
"""Most that perplexity may rise, and least that the likeliest token must be the same, of a form
that is advised without a warning."""


def lines(found: Evaluation) -> list[str]:
    """A table, what was refused, and which form to take."""
    own = found.rows[0]
    tasks = list(own.tasks)
    cells = [
        ["form", "weights", "KV/token", "tokens/s", "perplexity", "KL mean", "99.9%", "max",
         "same token"]
    ]  # fmt: skip
    asked = [["rightly done", *tasks]] if tasks else []
    for row in found.rows:
        if row.loss is None:
            continue
        loss = row.loss
        change = f"{loss.more_perplexity:+.2%}"
        cells.append(
            [
                row.form.name,
                size(row.weight_bytes),
                size(row.kv_bytes_per_token),
                number(row.tokens_per_second),
                number(loss.perplexity) if row is own else change,
                *(f"{nats:.2g}" for nats in (loss.divergence, loss.divergence_999)),
                f"{loss.most_divergence:.2g}",
                percent(loss.same_token),
            ]
        )
        if tasks:
            asked.append([row.form.name, *(percent(row.tasks[task]) for task in tasks)])
    refused = [f"  {row.form.name} cannot be had: {row.refusal}" for row in found.rows
               if row.refusal]  # fmt: skip
    head = (
        f"{found.model}: {_predictions(found):,} predictions, beside {own.form.name}; "
        "KL in nats; tokens/s of 8 texts at a time, here and now"
    )
    return [head, *table(cells), *(table(asked) if asked else []), *refused, advice(found)]


def advice(found: Evaluation) -> str:
    """One line: which form to take."""
    rows = [row for row in found.rows[1:] if row.loss is not None] or list(found.rows[:1])
    good = [row for row in rows if _is_good(row)]
    fastest = max(rows, key=lambda row: row.tokens_per_second)
    most, least = GOOD
    if not good:
        closest = min(rows, key=_divergence)
        return (
            f"No form stays within {most:+.1%} of perplexity and {least:.0%} of the same tokens: "
            f"{closest.form.name} loses least."
        )
    best = max(good, key=lambda row: row.tokens_per_second)
    text = f"Take {best.form.name} ({best.form.flags}): {_described(best)}."
    if fastest is not best:
        text += f" {fastest.form.name} is faster and loses more: {_described(fastest)}."
    return text


def as_json(found: Evaluation) -> dict[str, Any]:
    """All figures, with the units of their types."""
    return {
        "model": found.model,
        "reference": found.rows[0].form.name,
        "predictions": _predictions(found),
        "forms": [_row_as_json(row) for row in found.rows],
        "advice": advice(found),
    }


def picture(found: Evaluation) -> Picture:
    """Loss against speed, with memory as the size of a point."""
    rows = [row for row in found.rows if row.loss is not None]
    largest = max(row.weight_bytes for row in rows)

    title = f"What rounding costs {Path(found.model).name}"
    note = (
        "Lower loses less, further right is faster, larger takes more memory. Crosses lose more "
        f"than {GOOD[0]:.1%} of perplexity or {1 - GOOD[1]:.0%} of the likeliest tokens."
    )

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for row in rows:
            x, y = row.tokens_per_second, 1e3 * _divergence(row)
            good = row is found.rows[0] or _is_good(row)
            colour, marker = (BLUE, "o") if good else (VERMILLION, "X")
            area = 80 + 900 * row.weight_bytes / largest
            axes.scatter(x, y, s=area, color=colour, marker=marker, alpha=0.6,
                         clip_on=False)  # fmt: skip
            axes.annotate(row.form.name, (x, y), textcoords="offset points", xytext=(0, 18),
                          ha="center")  # fmt: skip
        axes.set_title(title)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_xlabel("tokens per second, eight texts at a time")
        axes.set_ylabel("divergence, thousandths of a nat")
        axes.grid(color=GREY, alpha=0.3)
        axes.margins(0.15, 0.25)
        axes.set_ylim(bottom=0)
        figure.supxlabel(note, fontsize=9)

    return draw("forms", title, note, paint)


def _predictions(found: Evaluation) -> int:
    loss = found.rows[0].loss
    return 0 if loss is None else loss.predictions


def _is_good(row: FormResult) -> bool:
    most, least = GOOD
    loss = row.loss
    return loss is not None and loss.more_perplexity <= most and loss.same_token >= least


def _divergence(row: FormResult) -> float:
    assert row.loss is not None
    return row.loss.divergence


def _described(row: FormResult) -> str:
    assert row.loss is not None
    return (
        f"{size(row.weight_bytes)} of weights, {number(row.tokens_per_second)} tokens/s, "
        f"perplexity {row.loss.more_perplexity:+.2%}, the same likeliest token in "
        f"{row.loss.same_token:.1%}"
    )


def _row_as_json(row: FormResult) -> dict[str, Any]:
    if row.loss is None:
        return {"form": row.form.name, "flags": row.form.flags, "refusal": row.refusal}
    return {
        "form": row.form.name,
        "flags": row.form.flags,
        "weight_bytes": row.weight_bytes,
        "kv_bytes_per_token": row.kv_bytes_per_token,
        "tokens_per_second": row.tokens_per_second,
        **row.loss._asdict(),
        "tasks": dict(row.tasks),
    }
