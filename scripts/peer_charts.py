"""Makes the charts of docs/ beside other servers, of what ``make bench-peers ARGS=--json`` said:

    python scripts/peer_charts.py [NAME FILE...]

A record in benchmarks/peers/records gives docs/images/peers-NAME.svg: for each shape a row for each
system and form of weights, a column for each workload. With NAME and FILEs, what is shown of them
becomes the record NAME first, in place of an older one. peers.svg, for docs/why.md, shows parts of
two of them beside each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # after its backend is chosen
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
RECORDS, IMAGES = ROOT / "benchmarks/peers/records", ROOT / "docs/images"
NAMES = {
    "sharegpt": "64 long chats at once",
    "alpaca": "short chats at once",
    "prefix": "64 that begin alike",
    "alone": "one request alone",
    "brief": "one request alone",
}
SUMMARY = {
    "bf16": (("bf16",), ("sharegpt", "alone")),
    "gguf": (("Q4_K_M", "Q8_0"), ("alpaca", "alone")),
}
"""Forms of weights and workloads, by the record."""
OURS, THEIRS = "#00796b", "#b0bec5"

Rows = Sequence[Mapping[str, Any]]


def record(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What charts show of reports of one machine; of what two have measured, the first's rate."""
    shapes: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for report in reports:
        for shape, rows in report["shapes"].items():
            kept = shapes.setdefault(Path(shape).name, {})
            for row in filter(lambda one: one["workloads"], map(_shown, rows)):
                known = kept.setdefault((row["system"], row["form"]), row)
                known["workloads"] = {**row["workloads"], **known["workloads"]}
    return {
        "machine": {name: reports[0]["machine"][name] for name in ("cpu", "cores")},
        "shapes": {shape: [*kept.values()] for shape, kept in shapes.items()},
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    measured = {name: one["tokens_per_second"] for name, one in row["workloads"].items()}
    return {
        "system": row["system"],
        "title": row["title"].split(" (")[0],
        "form": row["form"],
        "workloads": {
            name: {"tokens_per_second": round(rate) if rate >= 100 else round(rate, 1)}
            for name, rate in measured.items()
            if rate is not None
        },
    }


def chart(shapes: Mapping[str, Rows], file: Path) -> None:
    """Bars of tokens a second; of a shape alone, a workload that not all rows have is left out."""
    rows = [row for one in shapes.values() for row in one]
    shown = [
        name
        for name in NAMES
        if (any if len(shapes) > 1 else all)(name in row["workloads"] for row in rows)
    ]
    size = (2.2 * len(shown) + 1.6, 0.3 * len(rows) + 0.2 * len(shapes) + 0.3)
    figure, grid = plt.subplots(
        len(shapes),
        len(shown),
        figsize=size,
        sharey="row",
        squeeze=False,
        layout="constrained",
        height_ratios=[len(one) + 1 for one in shapes.values()],
    )
    for axes, (shape, of_shape) in zip(grid, shapes.items(), strict=True):
        for one, name in zip(axes, shown, strict=True):
            _bars(one, of_shape, name)
            one.set_title(
                NAMES[name] if len(shapes) == 1 else f"{shape}: {NAMES[name]}", fontsize=10
            )
        axes[0].invert_yaxis()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def summary(records: Mapping[str, Rows], file: Path) -> None:
    """What ``SUMMARY`` names, in one row of columns."""
    figure, grid = plt.subplots(1, 4, figsize=(11, 1.5), layout="constrained")
    columns = iter(grid)
    for name, (forms, workloads) in SUMMARY.items():
        rows = [row for row in records[name] if row["form"].split(" / ")[0] in forms]
        for workload in workloads:
            axes = next(columns)
            _bars(axes, rows, workload)
            axes.set_title(NAMES[workload], fontsize=10)
            axes.invert_yaxis()
            axes.tick_params(labelleft=workload == workloads[0])
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _bars(axes: Axes, rows: Rows, name: str) -> None:
    labels = [f"{row['title']}, {row['form'].split(' / ')[0]}" for row in rows]
    told = [row["workloads"].get(name) for row in rows]
    rates = [0 if one is None else one["tokens_per_second"] for one in told]
    colours = [OURS if row["system"] == "quire" else THEIRS for row in rows]
    bars = axes.barh(range(len(rows)), rates, color=colours)
    axes.bar_label(bars, [_said(rate) for rate in rates], padding=3, fontsize=9)
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.set_xticks([])
    axes.set_xlim(0, 1.18 * (max(rates) or 1.0))
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _said(rate: float) -> str:
    if not rate:
        return "not measured"
    return f"{rate:,.0f}" if rate >= 20 else f"{rate:.1f}"


def main(images: Path = IMAGES) -> None:
    if len(sys.argv) > 2:
        reports = [json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[2:]]
        text = json.dumps(record(reports), indent=1)
        (RECORDS / f"{sys.argv[1]}.json").write_text(f"{text}\n", encoding="utf-8")
    plt.rcParams.update({"svg.hashsalt": "quire", "svg.fonttype": "none", "font.size": 9})
    records = {}
    for one in sorted(RECORDS.glob("*.json")):
        shapes = json.loads(one.read_text(encoding="utf-8"))["shapes"]
        chart(shapes, images / f"peers-{one.stem}.svg")
        records[one.stem] = [row for rows in shapes.values() for row in rows]
    summary(records, images / "peers.svg")


if __name__ == "__main__":
    main()
