"""Servers' states as lines and tables of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

State = Mapping[str, Any]  # as /v1/quire/state has it
Row = Mapping[str, Any]

_SLOTS = (  # what a slot does, its letter in the bar, its colour
    ("used", "█", "green"),
    ("reserved", "▓", "yellow"),
    ("internal", "▒", "red"),
    ("external", "▒", "magenta"),
    ("cached", "░", "cyan"),
    ("free", "·", "bright_black"),
)
_LOOKED_UP = {  # what became of prompts' tokens, in words
    "found": "found", "fetched": "fetched", "evicted": "evicted", "stateless": "without a snapshot",
    "new": "new",
}  # fmt: skip
_COLOURS = {"running": "green", "waiting": "yellow", "preempted": "red"}
_WIDE, _WIDEST = 110, 160  # columns, from which on all figures have room; and all words
_HIDDEN = dict.fromkeys([*range(32), *range(127, 160)])  # a server's words must not move the cursor

SORTS: Mapping[str, Callable[[Row], Any]] = {
    "line": lambda row: 0,  # running, preempted, waiting: each in line
    "age": lambda row: -row["seconds"],
    "blocks": lambda row: -row["blocks"],
    "tokens": lambda row: -row["output_tokens"],
}


@dataclass(frozen=True)
class View:
    """A server as of the last update: its state, or why there is none."""

    url: str
    state: State | None = None
    problem: str = ""


def page(
    views: Sequence[View], width: int, height: int | None, sort: str, keys: str = ""
) -> RenderableType:
    """All servers in this many lines; None: as many as they take."""
    heads = [_head(view, width) for view in views]
    parts: list[RenderableType] = [line for head in heads for line in head]
    room = None if height is None else height - len(parts) - bool(keys)
    parts += _requests(views, width, room, sort)
    if keys:
        parts.append(Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def printed(views: Sequence[View], console: Console, sort: str) -> None:
    """Print the servers once."""
    console.print(page(views, console.width, None, sort))


# -- a server ----------------------------------------------------------------------------------


def _head(view: View, width: int) -> list[Text]:
    state = view.state
    if state is None:
        return [_line(("✗ ", "bold red"), (f"{view.url}  ", "bold"), (view.problem, "red"))]
    requests = state["requests"]
    counts = [(kind, requests[f"num_{kind}"]) for kind in _COLOURS]
    told = [
        part
        for kind, count in counts
        for part in ((f"  {count:,} {kind}", _COLOURS[kind] if count else "dim"),)
    ]
    first = _line((f"{state['model']} ", "bold"), (view.url, "dim"), *told)
    return [first, _memory(state["pool"], width), _pace(state, width), _past(state, width)]


def _memory(pool: Mapping[str, Any], width: int) -> Text:
    slots, total = pool["slots"], max(1, sum(pool["slots"].values()))
    names = " ".join(
        f"{name} {_percent(slots[name] / total)}"
        for name, *_ in _SLOTS
        if slots[name] or name in ("used", "cached", "free")
    )
    title = f"{pool['num_blocks']:,} blocks "
    cells = max(8, width - len(title) - len(names) - 2)
    bar, ends, last = Text(), 0, 0
    for name, letter, colour in _SLOTS:
        ends += slots[name]
        end = round(cells * ends / total)
        bar.append(letter * (end - last), colour)
        last = end
    return Text.assemble(title, bar, " ", names, no_wrap=True, overflow="ellipsis")


def _pace(state: State, width: int) -> Text:
    rates, latencies = state["rates"], state["latencies"]
    step, where = rates["step_seconds"], state.get("step_parts")
    parts = [
        f"out {_count(rates['generated_tokens_per_second'])}",
        f"in {_count(rates['prompt_tokens_per_second'])} tok/s",
        f"batch {rates['sequences']:.3g}" + ("" if step is None else f"  step {_seconds(step)}"),
        f"TTFT {_percentiles(latencies['first_token'])}",
        f"ITL {_percentiles(latencies['between_tokens'])}",
    ]
    if width >= _WIDE:
        parts.append(f"queue {_seconds(state['queue_predicted_seconds'])}")
        parts += [_longest(where)] if where else []
    return _line(("  ".join(parts), ""))


def _longest(where: Mapping[str, float]) -> str:
    """The part of a step that takes most time."""
    seconds = {name: value for name, value in where.items() if name != "steps"}
    name = max(seconds, key=seconds.__getitem__)
    return f"{name} {_percent(seconds[name] / max(1e-9, sum(seconds.values())))} of a step"


def _past(state: State, width: int) -> Text:
    cache, decisions = state["prefix_cache"], state["decisions"]
    parts, queried = [], cache["queried_tokens"]
    if queried:
        told = [f"{word} {_percent(cache[f'{kind}_tokens'] / queried)}"
                for kind, word in _LOOKED_UP.items()
                if cache.get(f"{kind}_tokens") or kind == "found"]  # fmt: skip
        parts.append("prompts " + ", ".join(told))
    swaps, recomputes = decisions.get("swap", 0), decisions.get("recompute", 0)
    if swaps + recomputes:
        parts.append(f"preempted {recomputes:,} by recompute, {swaps:,} by swap")
    drafting = state["speculation"]
    if drafting and drafting["draft_tokens"]:
        right = drafting["accepted_tokens"] / drafting["draft_tokens"]
        parts.append(f"drafts {_percent(right)} right")
    if state["num_sessions"]:
        parts.append(f"{state['num_sessions']:,} sessions")
    if state["adapters"]:
        parts.append(f"{sum(one['running'] for one in state['adapters'])} adapters run")
    if state["ranks"]:
        parts.append(f"{state['ranks']} ranks")
    if state["store"]:
        parts.append(f"store {state['store']['bytes'] / 2**30:.3g} GiB")
    return _line(("  ".join(parts) or "nothing has been served yet", "dim"))


# -- requests ----------------------------------------------------------------------------------


def _requests(
    views: Sequence[View], width: int, room: int | None, sort: str
) -> Iterator[RenderableType]:
    states = [(number, view.state) for number, view in enumerate(views, 1) if view.state]
    everybody = [
        (number, row)
        for kind in ("running", "preempted", "waiting")
        for number, state in states
        for row in state["requests"][kind]
    ]
    total = sum(state["requests"][f"num_{kind}"] for _, state in states for kind in _COLOURS)
    everybody.sort(key=lambda one: SORTS[sort](one[1]))
    shown = everybody if room is None else everybody[: max(0, room - 2)]
    if not everybody or (room is not None and room < 3):
        return
    table = _table(width, several=len(views) > 1)
    for number, row in shown:
        table.add_row(*_cells(number, row, width, several=len(views) > 1))
    yield table
    if len(shown) < total:
        yield _line((f"and {total - len(shown):,} more", "dim"))


def _table(width: int, *, several: bool) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold reverse")
    if several:
        table.add_column("#", width=2)
    table.add_column("request", no_wrap=True, width=10 if width < _WIDEST else 39)
    table.add_column("", no_wrap=True, width=9)
    for name in ("age", "prompt", "hit", "out", "blocks"):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= _WIDE:
        for name in ("drafts", "preempted", "ends within"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column(
        "waits" if width < _WIDEST else "why it waits", ratio=1, no_wrap=True, overflow="ellipsis"
    )
    return table


def _cells(number: int, row: Row, width: int, *, several: bool) -> Iterator[RenderableType]:
    if several:
        yield str(number)
    yield _clean(row["id"])
    yield Text(row["status"], _COLOURS.get(row["status"], ""))
    yield _seconds(row["seconds"])
    yield _count(row["prompt_tokens"])
    yield _percent(row["cached_tokens"] / max(1, row["prompt_tokens"]))
    yield f"{_count(row['output_tokens'])}/{_count(row['max_tokens'])}"
    yield _count(row["blocks"])
    if width >= _WIDE:
        drafted, ends = row["draft_tokens"], row["ends_within_seconds"]
        yield _percent(row["accepted_tokens"] / drafted) if drafted else ""
        yield str(row["swaps"] + row["recomputes"] or "")
        yield "" if ends is None else _seconds(ends)
    yield _why(row["wait"], width) if row["wait"] else ""


def _why(wait: Mapping[str, Any], width: int) -> str:
    if width >= _WIDEST or wait["needed"] is None:
        remedy = wait.get("remedy")  # servers before this one say none, or less
        return _clean(wait["text"] + (f"; to admit it now: {remedy}" if remedy else ""))
    if wait["ahead"]:
        return f"behind {wait['ahead']}, needs {wait['needed']}"
    if wait["unit"] == "sequences":
        return "max_num_seqs run"
    return f"needs {wait['needed']}, {wait['free']} free"


# -- figures -----------------------------------------------------------------------------------


def _line(*parts: tuple[str, str]) -> Text:
    """One line, cut where it is too long."""
    clean = [(_clean(text), style) for text, style in parts]
    return Text.assemble(*clean, no_wrap=True, overflow="ellipsis")


def _clean(text: object) -> str:
    return str(text).translate(_HIDDEN)


def _count(value: float) -> str:
    if value < 10_000:
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    return f"{value / 1000:,.0f}k"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.{0 if value >= 0.01 else 1}f}ms"
    if value < 100:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"


def _percentiles(found: Mapping[str, Any]) -> str:
    if not found["count"]:
        return "-"
    return f"{_seconds(found['p50'])}/{_seconds(found['p99'])}"
