"""The result of a comparison, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire_lab.calibration.comparison import AGREES, DECIDING, FEWEST, Comparison, Figure

_SLOWER = 0.05  # of what steps cost, from which on it counts
_DISTURBED = 1.1
_MILLISECOND = 1e-3


def verdict(found: Comparison) -> list[str]:
    """Whether they agree, if there is enough data; if not, where they differ and why."""
    deciding = [one for one in found.figures if one.name in DECIDING]
    if found.means_agree:
        far = max(deciding, key=lambda one: abs(one.off or 0.0))
        largest = f"; {_short(far)} is {_off(far)}" if far.off else ""
        names = [one.name.partition(",")[0] for one in deciding]
        within = f"{', '.join(names[:-1])} and {names[-1]} are within {AGREES:.0%}{largest}."
        how = "agrees with the recording" if found.agrees else "agrees in part with the recording"
        sentences = [f"The simulation {how}: {within}"]
        if not found.is_enough:
            sentences = [f"{_too_few(found)} Of these, {within}"]
        if not found.agrees:
            sentences.append(f"Not all agree: {_wrong(found.figures)}.")
    else:
        wrong = _wrong(deciding)
        sentences = [f"The simulation does not agree with the recording: {wrong}.", _where(found)]
        if not found.is_enough:
            sentences.insert(0, _too_few(found))
    return [*sentences, *_why(found)]


def _too_few(found: Comparison) -> str:
    few = "1 request is" if found.num_compared == 1 else f"{found.num_compared} requests are"
    return f"No verdict: {few} too few, {FEWEST} are the least."


def _wrong(figures: Iterable[Figure]) -> str:
    """Those that do not agree, each with its error."""
    return ", ".join(f"{_short(one)} is {_off(one)}" for one in figures if not one.agrees)


def _short(figure: Figure) -> str:
    name, _, kind = figure.name.partition(", ")
    if kind:
        return f"the {kind} {name}"
    return f"the {name}" if figure.unit else f"the number of {name}"


def _off(figure: Figure) -> str:
    if figure.off is None:
        return f"{figure.simulated:,.0f} for none"
    how = ("long", "short") if figure.unit else ("high", "low")
    return f"{abs(figure.off):.1%} too {how[figure.off < 0]}"


def _where(found: Comparison) -> str:
    apart = [one for one in found.stretches if not one.agrees]
    if not apart:
        return "No part of the time stands out in TTFT."
    first, total = apart[0], len(found.stretches)
    when = f"{first.begin:,.1f} s after the first request on" if first.begin else "the start on"
    return f"They differ from {when}; TTFT differs in {len(apart)} of {total} stretches of time."


def _why(found: Comparison) -> Iterator[str]:
    yield from _speed(found)
    if found.disturbed is not None and found.disturbed > _DISTURBED:
        yield (
            f"By the clock steps took {found.disturbed:.2f} times their processor time: they had "
            "to wait for cores. --unit cpu leaves that out."
        )
    if not found.agrees:
        yield from _waiting(found)
        if not found.kinds:
            yield "With --steps, what quire serve --record-steps wrote, the reason can be found."
    if found.result.num_refused:
        yield (
            f"Of {len(found.recording.requests):,} requests that were served, the simulation "
            f"refuses {found.result.num_refused:,}; the first {found.result.first_refusal}."
        )
    cached = found.figure("prompt tokens in the cache")
    if not cached.agrees:
        yield (
            f"The prefix cache held {cached.real:,.0f} tokens of prompts, and "
            f"{cached.simulated:,.0f} in the simulation."
        )
    if found.recording.preparing > _MILLISECOND:
        yield (
            f"Before they were queued, requests took {found.recording.preparing * 1e3:.3g} ms "
            "on average to be read and tokenized; none of these figures includes that."
        )
    if found.recording.num_left_out:
        yield f"{found.recording.num_left_out:,} requests have no times, and are left out."


def _speed(found: Comparison) -> Iterator[str]:
    """The part of the error that comes from costs, and the part that does not."""
    speed = found.speed
    if speed is None:
        return
    if abs(speed - 1) > _SLOWER:
        worst = max(found.kinds, key=lambda kind: abs(kind.real - kind.costed))
        yield (
            f"The recorded steps took {speed:.2f} times what they cost, mostly those {worst.name} "
            f"({worst.real / worst.costed:.2f} times)."
        )
    if found.agrees and found.decides_alike:
        return
    ttft = next(one for one in found.equal if one.name == "TTFT, mean")
    text = f"If each step had taken what it costs, the mean TTFT would be {_off(ttft)}"
    if found.decides_alike:
        yield f"{text}: the order of requests is simulated right, and the costs are not."
    else:
        yield f"{text}: costs are not all that is simulated wrong."


def _waiting(found: Comparison) -> Iterator[str]:
    """A note if the mean TTFT consists of few long waits, whose requests little decides."""
    ttft, line = found.figure("TTFT, mean"), found.figure("in line, mean")
    apart, waiting = ttft.simulated - ttft.real, line.simulated - line.real
    if ttft.agrees or not apart or not waiting / apart >= 0.5:
        return
    waits = sorted((one.queueing for one in found.recording.requests), reverse=True)
    most = next(i for i in range(1, len(waits) + 1) if sum(waits[:i]) >= sum(waits) / 2)
    yield (
        f"{min(1.0, waiting / apart):.0%} of what the mean TTFT is off by are waits in the queue, "
        f"of which {most} of {len(waits):,} requests have half."
    )
