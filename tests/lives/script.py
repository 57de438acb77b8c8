"""What happens in a life, as data: drawn from one integer, so that any life can be told again.

No event looks at another, so that a life from which events are left out is a life too; and each
field of ``Settings`` has a value that takes what it stands for away.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields, replace

from lives.texts import EOS, VOCAB, Answer
from quire.core.protocol import Adapter, PreemptionMode, RecoveryCosts, Request, SchedulingPolicy
from quire.text.params import Pooling, PoolingParams, SamplingParams
from support.fake_model import FULL, Sight, Windows

ADAPTERS = tuple(Adapter(name.encode() * 32, name) for name in "ABC")
SESSIONS = ("s", "t", "u")
LAST = 40  # the latest tick at which anything happens by itself


@dataclass(frozen=True)
class Settings:
    """How the engine of a life is made; the defaults are the plainest."""

    block_size: int = 4
    blocks: int = 64
    host_blocks: int = 0
    windows: Windows = FULL  # of the KV groups
    share: float = 1.0  # of the blocks, that a KV group with a window has
    units: int = 0  # of the pages that all KV groups share; 0: each has blocks of its own
    spans: tuple[int, ...] = ()  # units of a block of each
    slot_units: int = 0  # of a slot for states; 0: there are none, or they have their own memory
    states: int = 0  # slots of a KV group that keeps a state of each sequence; 0: there is none
    every: int = 1  # blocks between two snapshots, in prompts and in answers
    step_tokens: int = 32
    seqs: int = 8
    caching: bool = True
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    mode: PreemptionMode = PreemptionMode.RECOMPUTE
    costs: RecoveryCosts = RecoveryCosts()  # noqa: RUF009  # frozen
    max_queue_time: float | None = None
    sinks: int = 0  # of sessions' rings
    ahead: bool = False  # steps are planned while the one before is under way
    right_drafts: float | None = None  # the share of drafts that are right; None: there are none
    draft_model: str = ""  # that makes some of them: "plain", or with "states" of its own
    forgets: float | None = None  # how much the store beyond the pool forgets; None: there is none
    lost_moves: float = 0.0  # the share of moves to and from elsewhere that fail
    slots: int | None = None  # for adapters at once
    slow_adapters: bool = False  # each takes some ticks to be read
    watched: bool = False  # block events are kept


@dataclass(frozen=True)
class Ask:
    """A request. ``stop``: the token whose text ends its outputs."""

    at: int
    name: str
    prompt: tuple[int, ...]
    max_tokens: int = 1
    n: int = 1
    beams: int = 0
    seed: int = 0
    scored: bool = False
    pooled: Pooling | None = None
    stop: int | None = None
    min_tokens: int = 0
    salt: str = ""
    adapter: Adapter | None = None
    client: str = ""
    priority: int = 0

    @property
    def width(self) -> int:
        return self.beams or self.n

    def request(self) -> Request:
        scored = self.scored or not self.max_tokens
        tokens = 0 if self.pooled else self.max_tokens
        stop = None if self.stop is None or self.beams else [text_of(self.stop)]
        params = SamplingParams(
            n=1 if self.beams else self.n,
            use_beam_search=self.beams > 0,
            beam_width=self.beams or None,
            max_tokens=self.max_tokens,
            min_tokens=min(self.min_tokens, self.max_tokens),
            prompt_logprobs=0 if scored and not self.pooled else None,
            stop=stop,
            detokenize=stop is not None,
        )
        return Request(
            self.name, self.prompt, params, tokens, self.seed, float(self.at),
            eos_token_ids=frozenset([EOS]), priority=self.priority, client=self.client,
            pooling=PoolingParams(self.pooled) if self.pooled else None,
            cache_salt=self.salt, adapter=self.adapter,
            keep=[(2 * len(self.prompt) // 3, 3.0)] if self.seed % 3 == 0 else (),
        )  # fmt: skip


def text_of(token: int) -> str:
    """What the demonstration model's tokenizer says of it: one character."""
    return chr(token + 28)


@dataclass(frozen=True)
class Abort:
    """Of one of those that live. ``mid``: while a step is under way, where nobody plans ahead."""

    at: int
    which: int
    mid: bool = False


@dataclass(frozen=True)
class Open:
    at: int
    session: str
    salt: str = ""
    adapter: Adapter | None = None
    client: str | None = None


@dataclass(frozen=True)
class Turn:
    """More input for a session, and an answer."""

    at: int
    session: str
    tokens: tuple[int, ...]
    max_tokens: int = 1
    seed: int = 0
    priority: int = 0


@dataclass(frozen=True)
class Cut:
    """hard: all of it; soft: (bias, fade); last: all but so many tokens; else it is closed."""

    at: int
    session: str
    hard: bool = False
    soft: tuple[float, int] | None = None
    last: int = 0
    mid: bool = False


@dataclass(frozen=True)
class Fault:
    """A step fails as it is begun (``at_once``) or at its end; or one sequence gives no number."""

    at: int
    at_once: bool = False
    no_number: bool = False


@dataclass(frozen=True)
class Reset:
    """Nothing that has been computed is to be found."""

    at: int


Event = Ask | Abort | Open | Turn | Cut | Fault | Reset


@dataclass(frozen=True)
class Life:
    number: int
    settings: Settings
    events: tuple[Event, ...]

    def told(self) -> str:
        """What is not as plain as it could be, and what happens."""
        plain = Settings()
        lines = [f"life {self.number}:"]
        lines += [
            f"  {field.name} = {getattr(self.settings, field.name)}"
            for field in fields(Settings)
            if getattr(self.settings, field.name) != getattr(plain, field.name)
        ]
        return "\n".join([*lines, *(f"  {event}" for event in self.events)])


def draw(number: int) -> Life:
    """The life of that number: some of all that can happen, in little memory."""
    rng = random.Random(number)
    crowded = rng.random() < 0.5  # short prompts and long answers, so that some must give way
    settings = _draw_settings(rng)
    lengths = [1, 2, 3, 4] if crowded else [3, 5, 8, 14]
    pieces = [_tokens(rng, rng.choice(lengths)) for _ in range(rng.choice([1, 2, 2, 3]))]
    asks: list[Ask] = []
    for i in range(rng.choice([3, 4, 5, 6] if crowded else [1, 2, 3, 4, 6])):
        asks.append(_draw_ask(rng, f"r{i}", settings, pieces, asks, crowded))
    events: list[Event] = [*asks]
    if rng.random() < 0.35:
        talk = _draw_talk(rng, SESSIONS[0], settings, pieces)
        events += talk
        for session in SESSIONS[1 : rng.choice([1, 2, 3, 3])]:
            if rng.random() < 0.5:
                events += _draw_talk(rng, session, settings, pieces)
                continue
            later = rng.randint(0, 6)  # somebody says the same, but cuts elsewhere
            events += [
                replace(event, session=session, at=event.at + later)
                for event in talk
                if not isinstance(event, Cut) or rng.random() < 0.5
            ]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
        events.append(Abort(rng.randint(1, LAST), rng.randrange(8), rng.random() < 0.5))
    again: list[Ask] = []
    if rng.random() < 0.3:
        for latest in (rng.choice([3, 3, 8, LAST]),) * rng.choice([1, 1, 2]):
            what = rng.random()
            fault = Fault(rng.randint(0, latest), what < 0.3, what > 0.85)
            events.append(fault)
            for ask in asks:  # most of those whom it ends try again
                if rng.random() < 0.7 and f"{ask.name}again" not in [one.name for one in again]:
                    later = max(ask.at, fault.at) + rng.choice([1, 2, 6])
                    again.append(replace(ask, at=later, name=f"{ask.name}again"))
        events += again
    if rng.random() < 0.08:
        events.append(Reset(rng.randint(1, LAST)))
    settings = _draw_states(number, _draw_room(rng, settings, asks, crowded))
    settings = _draw_draft_model(number, _draw_pages(number, settings))
    return Life(number, settings, tuple(sorted(events, key=lambda event: event.at)))


def _draw_states(number: int, settings: Settings) -> Settings:
    """Of a number of its own, so that lives without states are what they were without any."""
    rng = random.Random(f"states of {number}")
    if rng.random() < 0.75:
        return settings
    slots, every = rng.choice([1, 2, 3, 4, 6, 9]), rng.choice([1, 1, 2, 3])
    return replace(settings, states=slots, every=every)


def _draw_pages(number: int, settings: Settings) -> Settings:
    """Of most lives with several KV groups."""
    rng = random.Random(f"pages of {number}")
    if len(settings.windows) + (settings.states > 0) < 2 or rng.random() < 0.25:
        return settings
    spans = [rng.choice([(1,), (1, 2), (1, 2, 3, 5)][rng.randrange(3)]) for _ in settings.windows]
    slot = rng.choice([1, 3, 7]) if settings.states else 0
    units = max(*spans, slot) * rng.choice([1, 1, 2]) + rng.choice([0, 0, 1])
    return replace(settings, units=units, spans=tuple(spans), slot_units=slot)


def _draw_draft_model(number: int, settings: Settings) -> Settings:
    """Of some lives, in which no step is planned ahead; mostly of those with states."""
    rng = random.Random(f"draft model of {number}")
    if rng.random() > (0.5 if settings.states else 0.1):
        return settings
    right = rng.choice([0.5, 0.8, 1.0]) if settings.right_drafts is None else settings.right_drafts
    kind = rng.choice(["plain", "states"]) if settings.states else "plain"
    return replace(settings, ahead=False, right_drafts=right, draft_model=kind)


def _draw_room(rng: random.Random, settings: Settings, asks: list[Ask], crowded: bool) -> Settings:
    """From barely enough for the longest request to plenty for all of them."""
    size = settings.block_size
    seen = max(2**30 if tokens is None else tokens + sinks for tokens, sinks in settings.windows)
    lengths = [(len(one.prompt) + one.max_tokens, one.width) for one in asks]
    most = max(min(length, seen + 2 * size) * (1 + width) // 2 for length, width in lengths)
    room = rng.choice([1.0, 1.2, 1.4, 1.6, 2.0] if crowded else [1.0, 1.2, 1.5, 2.0, 6.0])
    host = rng.choice([1, 2, 4]) * (most // size + 1)
    return replace(
        settings,
        blocks=int((most // size + 1) * room) + 1,
        host_blocks=host if rng.random() < 0.7 else 0,
    )


def _draw_settings(rng: random.Random) -> Settings:
    """All but how much memory there is."""
    size = rng.choice([1, 2, 2, 3, 4, 4, 8])
    return Settings(
        block_size=size,
        windows=_draw_windows(rng) if rng.random() < 0.5 else FULL,
        share=rng.choice([0.4, 0.6, 1.0, 1.0]),
        step_tokens=rng.choice([1, 3, 4, 4, 6, 8, 8, 16, 48]),
        seqs=rng.choice([1, 3, 4, 6, 8, 8, 8, 8]),
        caching=rng.random() < 0.9,
        policy=rng.choice(list(SchedulingPolicy)),
        mode=rng.choice([*PreemptionMode, *[PreemptionMode.SWAP] * 2]),
        costs=RecoveryCosts(rng.random() * size, rng.random(), rng.choice([0.0, 0.0, 9.0])),
        max_queue_time=rng.choice([2.0, 5.0]) if rng.random() < 0.25 else None,
        sinks=rng.choice([0, 0, 2, 5]),
        ahead=rng.random() < 0.5,
        right_drafts=rng.choice([0.0, 0.5, 0.7, 1.0]) if rng.random() < 0.4 else None,
        forgets=rng.choice([0.0, 0.2]) if rng.random() < 0.3 else None,
        lost_moves=rng.choice([0.1, 0.3]) if rng.random() < 0.5 else 0.0,
        slots=rng.choice([1, 2, 3, 3]) if rng.random() < 0.3 else None,
        slow_adapters=rng.random() < 0.2,
        watched=rng.random() < 0.2,
    )


def _draw_windows(rng: random.Random) -> Windows:
    """One KV group, or several of which the first has no window."""

    def sight() -> Sight:
        return Sight(rng.choice([1, 2, 3, 4, 5, 8, 12, 20, 30]), rng.choice([0, 0, 0, 1, 2, 4]))

    if rng.random() < 0.5:
        return (sight(),)
    return (Sight(), sight(), sight()) if rng.random() < 0.2 else (Sight(), sight())


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(count))


def _draw_text(rng: random.Random, pieces: list[tuple[int, ...]], most: int) -> tuple[int, ...]:
    """Out of few pieces, so that texts begin alike; perhaps with an end of its own."""
    text = tuple(token for _ in range(rng.randint(0, 2)) for token in rng.choice(pieces))
    if rng.random() < 0.2:
        text = text[: rng.randint(0, len(text))]
    if rng.random() < 0.5 or not text:
        text += _tokens(rng, rng.randint(1, most))
    return text


def _draw_ask(
    rng: random.Random,
    name: str,
    settings: Settings,
    pieces: list[tuple[int, ...]],
    asks: list[Ask],
    crowded: bool,
) -> Ask:
    """Some go on from what others have been answered."""
    max_tokens = rng.choice([12, 12, 16, 20] if crowded else [1, 3, 6, 8, 12])
    prompt = pieces[0] + _draw_text(rng, pieces, 2 if crowded else 6)
    if rng.random() < 0.2 and asks:
        before = rng.choice(asks)
        answer = Answer(before.request(), 0)
        prompt = tuple(answer.upto(len(before.prompt) + rng.randint(0, before.max_tokens)))
        prompt = prompt[: len(before.prompt) + 16] + _tokens(rng, rng.choice([0, 1, 3]))
    kind = rng.random()
    shared = settings.policy is not SchedulingPolicy.FCFS
    return Ask(
        at=rng.choice([0, 0, 0, rng.randint(0, 4), rng.randint(0, 4 if crowded else LAST)]),
        name=name,
        prompt=prompt,
        max_tokens=0 if kind > 0.95 else max_tokens,
        n=rng.choice([2, 2, 3, 4]) if kind < 0.22 else 1,
        beams=rng.choice([2, 3]) if 0.22 < kind < 0.3 else 0,
        seed=rng.randrange(4),
        scored=kind > 0.88,
        pooled=rng.choice([Pooling.LAST, Pooling.MEAN]) if 0.84 < kind < 0.87 else None,
        stop=rng.randint(5, VOCAB - 1) if rng.random() < 0.2 else None,
        min_tokens=rng.choice([0, 0, 0, 3]),
        salt=rng.choice(["", "", "", "salt"]),
        adapter=rng.choice([None, *ADAPTERS]) if settings.slots is not None else None,
        client=rng.choice("abc") if settings.policy is SchedulingPolicy.FAIR else "",
        priority=rng.choice([0, 0, -1, 2]) if shared else 0,
    )


def _draw_talk(
    rng: random.Random, session: str, settings: Settings, pieces: list[tuple[int, ...]]
) -> list[Open | Turn | Cut]:
    """Turns with pauses in which others take the blocks, and cuts between them or at bad times."""
    at = rng.randint(0, 6)
    adapter = rng.choice([None, *ADAPTERS]) if settings.slots is not None else None
    salt, client = rng.choice(["", "", "", "salt"]), rng.choice([None, "a"])
    events: list[Open | Turn | Cut] = [Open(at, session, salt, adapter, client)]
    for number in range(rng.choice([2, 3, 4, 5])):
        tokens = _draw_text(rng, pieces, 5)
        if number and rng.random() < 0.2:
            tokens = ()  # it goes on by itself
        priority = rng.choice([0, 1]) if settings.policy is not SchedulingPolicy.FCFS else 0
        events.append(Turn(at, session, tokens, rng.randint(1, 10), rng.randrange(4), priority))
        at += rng.choice([1, 2, 4, 8])
        what, mid = rng.random(), rng.random() < 0.5
        if what < 0.1:
            events.append(Cut(at, session, hard=True, mid=mid))
        elif what < 0.35:
            bias = rng.choice([-math.inf, -1.0, -0.5])
            events.append(Cut(at, session, soft=(bias, rng.choice([0, 5, 40])), mid=mid))
        elif what < 0.45:
            events.append(Cut(at, session, last=rng.randint(1, 20), mid=mid))
    if rng.random() < 0.5:
        events.append(Cut(at + rng.randint(0, 9), session))
    return events
