"""The requests that a server gets, and the steps between the tokens that its client sees.

A client sees no steps. But while no other client is served, it can infer them: a prompt alone is
computed in chunks of max_num_batched_tokens until its first token comes; of requests that all
decode, each gets a token per step; and if one more comes, its prompt is computed beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from quire.engine.work import Work
from quire_lab.calibration.fit import Timing
from quire_lab.simulation.cost_model import decoding

_LENGTHS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_CONTEXTS = (16, 256, 1024, 4096)
_USERS = (1, 2, 4, 8, 16, 32, 64, 128)
_OUTPUT = 32  # tokens
_MOST_TOKENS = 65536  # of all prompts that are sent together
_JOINED = (1, 4, 16)  # users whom a newcomer's prompt of these lengths comes beside
_NEWCOMERS = (64, 512, 2048)


class Stream(NamedTuple):
    """An answer as it came: seconds on the client's clock."""

    sent: float
    times: Sequence[float]  # of the tokens; the first is the prompt's
    prompt_tokens: int


class Room(NamedTuple):
    """How far probes may go."""

    longest: int  # tokens of a request
    pool: int  # tokens of all
    most_seqs: int
    budget: int  # tokens that a step computes at most


@dataclass(frozen=True)
class ClientProbe:
    """``users`` with prompts of one length at once; then perhaps one more, while they decode.

    newcomer: tokens of the additional prompt; 0: none comes.
    """

    users: int
    prompt_tokens: int
    newcomer: int = 0

    @property
    def output_tokens(self) -> int:
        """Output tokens of each user. For a prompt alone, only the prompt matters."""
        return 2 if self.alone else _OUTPUT * (2 if self.newcomer else 1)

    @property
    def alone(self) -> bool:
        return self.users == 1 and not self.newcomer and self.prompt_tokens not in _CONTEXTS

    def __str__(self) -> str:
        who = f"{self.users} users" if self.users > 1 else "one user"
        beside = f", and one more of {self.newcomer:,}" if self.newcomer else ""
        tokens = "1 token" if self.prompt_tokens == 1 else f"{self.prompt_tokens:,} tokens"
        return f"{who}, prompts of {tokens}{beside}"


def plan(room: Room) -> list[ClientProbe]:
    """The probes, from small to large, as far as there is room."""

    def fits(users: int, tokens: int) -> bool:
        tokens += 2 * _OUTPUT
        most = min(room.pool * 4 // 5, _MOST_TOKENS)
        return tokens <= room.longest and users * tokens <= most and users <= room.most_seqs

    found = [ClientProbe(1, length) for length in _LENGTHS if fits(1, length)]
    found += [
        ClientProbe(users, length)
        for length in _CONTEXTS
        for users in _USERS
        if fits(users, length)
    ]
    found += [
        ClientProbe(users, _CONTEXTS[0], newcomer)
        for users in _JOINED
        for newcomer in _NEWCOMERS
        if fits(1, newcomer) and fits(users + 1, max(_CONTEXTS[0], newcomer // (users + 1)))
    ]
    return sorted(set(found), key=lambda probe: (probe.users * probe.prompt_tokens, probe.newcomer))


# -- from what came to steps and seconds -------------------------------------------------------


def timings(probe: ClientProbe, streams: Sequence[Stream], room: Room) -> list[Timing]:
    """``streams``: the users', and the newcomer's after them."""
    users, found = streams[: probe.users], []
    if probe.newcomer:
        return _joined(users, streams[probe.users], room)
    if probe.users == 1:
        works = tuple(prefill(users[0].prompt_tokens, room.budget))
        found.append(Timing(works, users[0].times[0] - users[0].sent, trips=1))
    return found if probe.alone else [*found, *_decoding(users)]


def typical(timings: Sequence[Timing]) -> Timing:
    """The median of one probe's results, by time per step.

    A network delays tokens and then delivers many at once, so that the fastest is no better.
    """
    ordered = sorted(timings, key=lambda one: one.seconds / len(one.works))
    return ordered[(len(ordered) - 1) // 2]


def prefill(tokens: int, budget: int, seqs: int = 0, context: int = 0) -> Iterator[Work]:
    """The steps in which a prompt is computed beside sequences that decode."""
    room = max(1, budget - seqs)
    for start in range(0, tokens, room):
        count = min(room, tokens - start)
        own = seqs + (start + count == tokens)
        if count == 1:  # as a step sees it, that is decoding
            yield Work(0, 0, 0, seqs + 1, context + start + 1, own)
        else:
            pairs = count * start + count * (count + 1) / 2
            yield Work(count, pairs, start + count, seqs, context, own)


def _decoding(users: Sequence[Stream]) -> list[Timing]:
    """The decode steps from the last first token of any user to the first user's last token."""
    one = max(users, key=lambda user: user.times[0])
    last = min(user.times[-1] for user in users) + _slack(one)
    steps = sum(time <= last for time in one.times) - 1
    if steps < 2:
        return []
    begin, end = one.times[0], one.times[steps]
    context = _context(users, begin + _slack(one))
    works = [decoding(len(users), context + i * len(users)) for i in range(steps)]
    return [Timing(tuple(works), end - begin)]


def _joined(users: Sequence[Stream], newcomer: Stream, room: Room) -> list[Timing]:
    """The steps of one user, from its last token before the newcomer came until the newcomer's
    first.
    """
    one, count = users[0], len(users)
    first = sum(time <= newcomer.sent for time in one.times) - 1
    last = sum(time < newcomer.times[0] - _slack(one) for time in one.times)
    if first < 0 or last >= len(one.times) or min(u.times[-1] for u in users) < one.times[last]:
        return []
    begin, end = one.times[first], one.times[last]
    context = _context(users, begin + _slack(one))
    mixed = list(prefill(newcomer.prompt_tokens, room.budget, count, context))
    alone = last - first - len(mixed)
    if alone < 0:
        return []
    return [Timing((*([decoding(count, context)] * alone), *mixed), end - begin)]


def _context(users: Sequence[Stream], time: float) -> int:
    """Tokens that are known by then, of prompts and outputs."""
    return sum(user.prompt_tokens + sum(one <= time for one in user.times) for user in users)


def _slack(stream: Stream) -> float:
    """Tokens of one step do not come at quite the same time."""
    times = stream.times
    return median(b - a for a, b in pairwise(times)) / 3 if len(times) > 1 else 0.0
