"""Makes the charts of docs/why.md, of what ``make bench-peers ARGS=--json`` has recorded:

    python scripts/peer_charts.py

A record in benchmarks/peers/records gives docs/images/peers-NAME.svg: a row for each system and
form of weights, a column for each workload. A new record takes the place of an old one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # after its backend is chosen

ROOT = Path(__file__).parents[1]
RECORDS, IMAGES = ROOT / "benchmarks/peers/records", ROOT / "docs/images"
NAMES = {
    "sharegpt": "64 long chats at once",
    "alpaca": "short chats at once",
    "prefix": "64 that begin alike",
    "alone": "one request alone",
}
OURS, THEIRS = "#00796b", "#b0bec5"


def chart(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Bars of tokens a second; a workload that not all rows have is left out."""
    shown = [name for name in NAMES if all(name in row["workloads"] for row in rows)]
    size = (2.2 * len(shown) + 1.6, 0.3 * len(rows) + 0.5)
    figure, columns = plt.subplots(1, len(shown), figsize=size, sharey=True, layout="constrained")
    labels = [f"{row['title']}, {row['form'].split(' / ')[0]}" for row in rows]
    for axes, name in zip(columns, shown, strict=True):
        rates = [row["workloads"][name]["tokens_per_second"] for row in rows]
        colours = [OURS if row["system"] == "quire" else THEIRS for row in rows]
        bars = axes.barh(range(len(rows)), rates, color=colours)
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3, fontsize=9)
        axes.set_title(NAMES[name], fontsize=10)
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        axes.set_xticks([])
        axes.set_xlim(0, 1.18 * max(rates))
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    columns[0].invert_yaxis()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main(images: Path = IMAGES) -> None:
    plt.rcParams.update({"svg.hashsalt": "quire", "svg.fonttype": "none", "font.size": 9})
    for record in sorted(RECORDS.glob("*.json")):
        (rows,) = json.loads(record.read_text(encoding="utf-8"))["shapes"].values()
        chart(rows, images / f"peers-{record.stem}.svg")


if __name__ == "__main__":
    main()
