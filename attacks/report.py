"""What came of a storm: a line for each attack, and which goals were met."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from attacks.observer import Observation
from attacks.storm import MEMORY_GROWTH, Life
from attacks.target import LEFT

HEALTH = 0.050  # seconds in which /health answers
PAUSE = 0.250  # seconds by which a stream may pause longer than its steps take
_MORE = 16  # open files than before, as connections that are just being closed are

_HEADING = """\
/health   the longest that somebody waited for its answer
gap       the longest time between two chunks of an innocent stream
guided    the same of one that is written by a grammar
pause     by how much these were more than the streams' steps take
begins    the longest that a stream took to begin
memory    the most that the server took
taken     seconds of a processor that the server and its workers spent on others than these streams
others    of the cores' time, what other processes had: it makes all figures worse
✗         misses a goal, or should not have come
"""


class Verdict(NamedTuple):
    """One goal."""

    met: bool
    text: str


def heading() -> str:
    figures = ("/health", "gap", "guided", "pause", "begins", "memory", "taken", "others")
    return f"{_HEADING}\n{_line('', 'answers', *figures)}"


def row(one: Observation) -> str:
    """An attack's line, and below it what no column holds."""
    lines = [
        _line(
            one.name,
            _answers(one),
            _marked(one.pause is not None and one.health > HEALTH, _time(one.health)),
            _time(one.gap),
            _time(one.guided),
            "" if one.pause is None else _marked(one.pause > PAUSE, _time(one.pause)),
            _time(one.first_chunk) if one.first_chunk else "",
            _mebibytes(one.peak_rss),
            "" if one.taken is None else f"{one.taken:.1f} s",
            f"{one.others:.0%}",
        )
    ]
    lines += [f"    ✗ {text}" for text in _findings(one)]
    return "\n".join(lines)


def _answers(one: Observation) -> str:
    """The commonest; that the attacker left is told only where it had none."""
    came = {answer: count for answer, count in one.answers.items() if answer != LEFT}
    shown = Counter(came or one.answers).most_common(3)
    return ", ".join(f"{count:,} × {answer}" for answer, count in shown)


def _findings(one: Observation) -> list[str]:
    findings = [f"answered {answer}" for answer in one.unexpected]
    if one.wrong_texts:
        findings.append(f"{one.wrong_texts} of {one.texts} streams broke off or had a wrong text")
    if not one.recovered:
        findings.append("did not recover in time, and was replaced")
    return findings


def judge(observations: Sequence[Observation], lives: Sequence[Life]) -> list[Verdict]:
    """The goals, over all attacks."""
    under_attack = [one for one in observations if one.pause is not None]
    verdicts = [
        _worst(under_attack, "/health answers", HEALTH, lambda one: one.health),
        _worst(under_attack, "a stream pauses beyond its steps", PAUSE, lambda one: one.pause or 0),
    ]
    wrong = sum(len(_findings(one)) > 0 for one in observations)
    verdicts.append(Verdict(not wrong, f"{wrong} attacks with another finding"))
    for life in lives:
        verdicts += _judge_life(life)
    return verdicts


def _worst(
    observations: Sequence[Observation],
    what: str,
    goal: float,
    figure: Callable[[Observation], float],
) -> Verdict:
    one = max(observations, key=figure)
    text = f"{what}: {_time(figure(one))} at worst (goal: {_time(goal)}), under: {one.name}"
    return Verdict(figure(one) <= goal, text)


def _judge_life(life: Life) -> list[Verdict]:
    before, after, end = life.before, life.after, life.shutdown
    ended = f"after {end.seconds:.1f} s (goal: at most {end.bound:g} s), status {end.status}"
    if not life.recovered:
        if end.status is not None and end.status < 0 and end.seconds < 1.0:
            return [Verdict(False, f"a server died of {signal.Signals(-end.status).name}")]
        return [Verdict(end.in_time, f"SIGTERM amid what had not ended: {ended}")]
    growth = after.rss / before.rss
    return [
        Verdict(
            growth <= MEMORY_GROWTH,
            f"memory: {_mebibytes(before.rss)} before, {_mebibytes(after.rss)} after "
            f"({growth - 1:+.1%}; goal: at most {MEMORY_GROWTH - 1:+.0%})",
        ),
        Verdict(
            after.files <= before.files + _MORE,
            f"open files: {before.files} before, {after.files} after; "
            f"threads: {before.threads} before, {after.threads} after",
        ),
        Verdict(life.slots_held == 0, f"KV slots held by nobody's request: {life.slots_held}"),
        Verdict(life.tracebacks == 0, f"tracebacks in the log: {life.tracebacks}"),
        Verdict(
            end.in_time and end.status == 0 and end.finished == end.streams,
            f"SIGTERM: {end.finished} of {end.streams} streams finished, {ended}",
        ),
    ]


def as_json(observations: Sequence[Observation], lives: Sequence[Life]) -> dict[str, Any]:
    verdicts = judge(observations, lives)
    return {
        "observations": [{**asdict(one), "pause": one.pause} for one in observations],
        "lives": [asdict(life) for life in lives],
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "met": all(verdict.met for verdict in verdicts),
    }


def _line(name: str, answers: str, *figures: str) -> str:
    return f"{name:31}{answers:26}" + "".join(f"{figure:>11}" for figure in figures)


def _marked(wrong: bool, text: str) -> str:
    return f"✗ {text}" if wrong else text


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
