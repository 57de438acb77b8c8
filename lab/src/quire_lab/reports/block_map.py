"""Who owned which block at one instant, drawn as the pool itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_lab.reports.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Picture,
    draw,
    legend_below,
)
from quire_lab.simulation.result import BlockMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BLOCKS = 2048
"""A pool's blocks beyond these are counted, not drawn."""

_WIDE = 64  # blocks in a row
_LABELLED = 512  # so many blocks or fewer have room for their owner's name


@dataclass(frozen=True)
class Holding:
    """What one request held on the device at that instant."""

    request_id: str
    colour: str
    branches: int
    tokens: int  # of its longest branch
    blocks: int  # distinct ones
    shared: int  # of them, held by another branch or request too


def holdings(block_map: BlockMap) -> list[Holding]:
    """Every request that held blocks, in order of its first block."""
    counts = _counts(block_map)
    by_request: dict[str, list[int]] = {}
    tokens: Counter[str] = Counter()
    branches: Counter[str] = Counter()
    for owner in block_map.owners:
        if owner.swapped:
            continue
        by_request.setdefault(owner.request_id, []).extend(owner.block_ids)
        branches[owner.request_id] += 1
        tokens[owner.request_id] = max(tokens[owner.request_id], owner.num_tokens)
    in_order = sorted(by_request, key=lambda one: min(by_request[one], default=0))
    return [
        Holding(
            request_id, _COLOURS[place % len(_COLOURS)], branches[request_id],
            tokens[request_id], len(blocks := set(by_request[request_id])),
            sum(counts[block] > 1 for block in blocks),
        )
        for place, request_id in enumerate(in_order)
    ]  # fmt: skip


def draw_block_map(block_map: BlockMap, held: list[Holding]) -> Picture:
    counts = _counts(block_map)
    shown = min(block_map.num_blocks, MOST_BLOCKS)
    owner_of = {
        block: owner.request_id
        for owner in reversed(block_map.owners)
        if not owner.swapped
        for block in owner.block_ids
    }
    colours = {one.request_id: one.colour for one in held}
    cached, empty = set(block_map.cached), without_tokens(block_map)
    across = min(_WIDE if shown > _LABELLED else 32, shown)
    down = -(-shown // across)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for block in range(shown):
            owner = owner_of.get(block)
            if owner is not None:
                hatch = "...." if block in empty else None
                _cell(axes, block, across, colours[owner], hatch)
            elif block in cached:
                _cell(axes, block, across, PALE, "////")
            else:
                _cell(axes, block, across, "white", None)
            if counts[block] > 1:
                _mark_shared(axes, block, across, counts[block], shown <= _LABELLED)
            elif owner is not None and shown <= _LABELLED:
                _write(axes, block, across, owner[:5], colours[owner])
        axes.set_xlim(0, across)
        axes.set_ylim(down, 0)
        axes.set_xticks(
            [x + 0.5 for x in range(0, across, 8)], [f"+{x}" for x in range(0, across, 8)]
        )
        rows = range(0, down, max(1, down // 16))
        axes.set_yticks([y + 0.5 for y in rows], [f"{y * across:,}" for y in rows])
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_ylabel("number of the row's first block")
        axes.set_title(
            f"Block map at {block_map.time:.2f} s (blocks of {block_map.block_size} tokens)"
        )
        _legend(figure)

    swapped = sum(len(owner.block_ids) for owner in block_map.owners if owner.swapped)
    notes = [
        f"{len(held)} requests held {len(counts):,} of {block_map.num_blocks:,} blocks, "
        f"{sum(count > 1 for count in counts.values()):,} of which have several owners; "
        f"{len(cached):,} free blocks keep content that can still be found.",
        "Each square is a block, each colour a request; the colours repeat after "
        f"{len(_COLOURS)} requests.",
    ]
    if swapped:
        notes.append(f"{swapped:,} blocks more were swapped out to the host.")
    if shown < block_map.num_blocks:
        notes.append(f"Only the first {shown:,} blocks are drawn.")
    height = min(10.0, 1.6 + 0.16 * down * (_WIDE / across))
    return draw("block-map", "Who owned which block", " ".join(notes), paint, height)


def _counts(block_map: BlockMap) -> Counter[int]:
    """Owners of each block of the device."""
    return Counter(
        block for owner in block_map.owners if not owner.swapped for block in owner.block_ids
    )


def without_tokens(block_map: BlockMap) -> set[int]:
    """Blocks that are held, and that no owner has filled to any part: a region's reserve."""
    held: set[int] = set()
    filled: set[int] = set()
    for owner in block_map.owners:
        if not owner.swapped:
            held.update(owner.block_ids)
            filled.update(owner.block_ids[: -(-owner.num_tokens // block_map.block_size)])
    return held - filled


def _cell(axes: Axes, block: int, across: int, colour: str, hatch: str | None) -> None:
    from matplotlib.patches import Rectangle

    edge = "#9A9A9A" if colour == PALE else "#D0D0D0" if colour == "white" else "white"
    corner = (block % across + 0.04, block // across + 0.04)
    axes.add_patch(
        Rectangle(corner, 0.92, 0.92, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0.5)
    )


def _mark_shared(axes: Axes, block: int, across: int, owners: int, labelled: bool) -> None:
    from matplotlib.patches import Rectangle

    x, y = block % across, block // across
    axes.add_patch(
        Rectangle((x + 0.1, y + 0.1), 0.8, 0.8, fill=False, edgecolor=INK, linewidth=1.6)
    )
    if labelled:
        axes.text(x + 0.5, y + 0.5, f"×{owners}", ha="center", va="center", fontsize=7.5,
                  fontweight="bold")  # fmt: skip


def _write(axes: Axes, block: int, across: int, text: str, colour: str) -> None:
    axes.text(
        block % across + 0.5, block // across + 0.5, text, ha="center", va="center", fontsize=7,
        color="white" if _dark(colour) else INK,
    )  # fmt: skip


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=BLUE, label="one owner (colour: which request)"),
        Patch(facecolor="white", edgecolor=INK, linewidth=1.6, label="several owners (dark frame)"),
        Patch(facecolor=BLUE, edgecolor="white", hatch="....", label="held, no token in it (dots)"),
        Patch(facecolor=PALE, edgecolor="#9A9A9A", hatch="////", label="free, content kept"),
        Patch(facecolor="white", edgecolor="#BBBBBB", label="free"),
    ]
    legend_below(figure, handles, columns=3)


def _blend(colour: str, other: str, share: float) -> str:
    parts = (
        round(int(colour[i : i + 2], 16) * (1 - share) + int(other[i : i + 2], 16) * share)
        for i in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02X}" for part in parts)


def _dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 120


_BASE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)
_COLOURS = (
    *_BASE,
    *(_blend(colour, "#FFFFFF", 0.5) for colour in _BASE),
    *(_blend(colour, "#000000", 0.45) for colour in _BASE),
)
