"""``quire calibrate --url``: probes sent, what came timed, costs fitted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from statistics import median

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.models.shape import ModelShape
from quire_lab.calibration.client.asking import ServerFacts, Target, TimedServer, look_at
from quire_lab.calibration.client.probes import ClientProbe, Room, Stream, plan, timings, typical
from quire_lab.calibration.fit import Fitted, Timing, fit_timings
from quire_lab.simulation.calibrated import Calibration

__all__ = ["Target", "calibrate_server", "fit_server", "look_at"]

_PASSES = 3
_HELD_OUT = 4
_FEWEST = 2 * _HELD_OUT
_LINEAR = 512  # tokens, from which on products are taken to cost in proportion
_APART = 1.5  # knots of the line, at least
_MOST_SECONDS = 24 * 3600.0


def calibrate_server(
    target: Target,
    facts: ServerFacts,
    model: ModelShape,
    config: EngineConfig,
    block_size: int,
    pool_bytes: int,
    time_limit: float,
    progress: Callable[[str], None],
) -> Calibration:
    """Send probes for up to ``time_limit`` seconds, and fit.

    Raises:
        ConfigError: the server does not work, or too little could be measured.
    """
    if not 1 <= time_limit <= _MOST_SECONDS:
        raise ConfigError(f"time_limit must be from 1 to 86,400 seconds, got {time_limit:g}")
    longest = facts.max_model_len or config.max_model_len or model.max_positions
    pool = pool_bytes // model.kv_bytes_per_token
    room = Room(min(longest, pool), pool, config.max_num_seqs, config.max_num_batched_tokens)
    measured = asyncio.run(_measure(TimedServer(target, facts.model), room, time_limit, progress))
    fitted, median_error, total_error = fit_server(measured)
    return Calibration(
        model=model,
        machine=f"the machine of {target.shown}",
        block_size=block_size,
        pool_bytes=pool_bytes,
        costs=fitted.costs,
        median_error=median_error,
        total_error=total_error,
        measured=f"{len(measured)} timings of {target.shown} by a client, if it computes "
        f"at most {room.budget:,} tokens a step",
        trip_seconds=fitted.trip_seconds,
        unknown=("swap", "drafts"),
    )


async def _measure(
    server: TimedServer, room: Room, time_limit: float, progress: Callable[[str], None]
) -> list[Timing]:
    """The typical result of each probe, in their order."""
    probes, end = plan(room), time.monotonic() + time_limit
    if not probes:
        raise ConfigError("the model's length or the KV pool is too small to calibrate with")
    await server.ask(probes[0].prompt_tokens, 2)  # its first answer is slower
    found: dict[tuple[int, int], list[Timing]] = {}
    for turn in range(_PASSES):
        for number, probe in enumerate(probes):
            left = end - time.monotonic()
            if left > 0:
                progress(f"pass {turn + 1}, {number + 1} of {len(probes)}: {probe}")
                with contextlib.suppress(asyncio.TimeoutError):
                    streams = await asyncio.wait_for(_send(server, probe), left)
                    for kind, timing in enumerate(timings(probe, streams, room)):
                        found.setdefault((number, kind), []).append(timing)
    return [typical(found[key]) for key in sorted(found)]


async def _send(server: TimedServer, probe: ClientProbe) -> list[Stream]:
    """The users' streams, and the newcomer's after them. They leave together, or not at all."""
    decoding = asyncio.Event()
    going = 0

    def heard() -> None:
        nonlocal going
        going += 1
        if going == probe.users:
            decoding.set()

    async def newcomer() -> Stream:
        await decoding.wait()
        return await server.ask(probe.newcomer, 2)

    length = probe.prompt_tokens, probe.output_tokens
    tasks = [asyncio.ensure_future(server.ask(*length, heard)) for _ in range(probe.users)]
    if probe.newcomer:
        tasks.append(asyncio.ensure_future(newcomer()))
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def fit_server(measured: Sequence[Timing]) -> tuple[Fitted, float, float]:
    """Costs, and the errors of every fourth timing, which is held out; but not the largest step.

    Raises:
        ConfigError: there are too few.
    """
    if len(measured) < _FEWEST:
        raise ConfigError(
            f"{len(measured)} timings are too few to fit costs to ({_FEWEST} are the least): raise "
            "time_limit, or let more requests or longer ones run"
        )
    largest = max(measured, key=_most_tokens)
    held_out = [one for one in measured[_HELD_OUT - 1 :: _HELD_OUT] if one is not largest]
    fitting = [one for one in measured if all(one is not other for other in held_out)]
    fitted = fit_timings(fitting, _knots(fitting))
    single = [abs(fitted.seconds(one) / one.seconds - 1) for one in held_out]
    predicted = sum(map(fitted.seconds, held_out))
    total = predicted / sum(one.seconds for one in held_out) - 1
    return fitted, median(single), total


def _most_tokens(timing: Timing) -> int:
    return max(work.num_tokens for work in timing.works)


def _knots(measured: Sequence[Timing]) -> tuple[int, ...]:
    """Numbers of tokens in steps, well apart. After the last but one the line is straight, for
    whole prompts cannot show what bends there: products, or the squares of attention.
    """
    seen = sorted({work.num_tokens for one in measured for work in one.works})
    most = seen[-1]
    knots = [seen[0]]
    for count in seen:
        if _APART * knots[-1] <= count <= min(_LINEAR, most / _APART):
            knots.append(count)
    return (*knots, most) if most > knots[-1] else (knots[0], knots[0] + 1)
