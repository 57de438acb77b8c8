"""Random lives of sessions beside other requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from quire.core.errors import RequestError, SessionBusyError
from quire.core.protocol import Progress, Request, SamplingParams, SoftCut, Step
from quire.core.scheduling import Ring, SequenceGroup
from support.fake_model import EOS, FULL, VOCAB, Windows, expected_turn
from support.outcomes import take_in
from support.scheduler_runs import MakeAllocator, SchedulerRun, make_paged, random_place
from support.twin import Twin

TICKS = 60


@dataclass
class _Session:
    """A session as its user keeps account of it."""

    session_id: str
    salt: str
    history: list[int] = field(default_factory=list)
    epoch: int = 0
    turn: Request | None = None
    expected: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    soft_cuts: list[SoftCut] = field(default_factory=list)

    def end_turn(self) -> None:
        assert self.turn is not None
        assert self.output == self.expected[: len(self.output)]
        self.history += self.output
        self.turn, self.output = None, []


class SessionRun(SchedulerRun):
    """Sessions append, generate, cut, recompute and are closed, with other requests beside them."""

    def __init__(
        self, seed: int, make_allocator: MakeAllocator = make_paged, windows: Windows = FULL
    ) -> None:
        super().__init__(seed, make_allocator, windows)
        self.sinks = self.rng.choice([0, 0, 2, 5])
        settings = {"max_num_sessions": 4, "ring": Ring(self.sinks)}
        self.scheduler = Twin(self.make_scheduler(**settings), self.make_scheduler(**settings))
        self.num_opened = 0
        self.open: dict[str, _Session] = {}
        self.groups: list[SequenceGroup] = []
        self.held_seconds = self.last_time = 0.0
        self.num_turns = 0
        self.num_expired_turns = 0
        self.cuts = self.soft_cuts = 0

    def pass_time(self, now: float) -> None:
        held = sum(kv_group.device.num_held for kv_group in self.kv_groups())
        self.held_seconds += (now - self.last_time) * held
        self.last_time = now

    # -- what users do ---------------------------------------------------------------------

    def act(self, now: float) -> None:
        """Something that a user may do between two steps, or during one."""
        rng, scheduler = self.rng, self.scheduler
        if len(self.open) < 3 and rng.random() < 0.4:
            self.num_opened += 1
            number = f"s{self.num_opened}"
            session = _Session(number, rng.choice(["", "salt"]))
            scheduler.sessions.open(number, session.salt)
            self.open[number] = session
            self.groups.append(scheduler.sessions.get(number).resting)
        if not self.open:
            return
        session = rng.choice(list(self.open.values()))
        name = session.session_id
        if session.turn is not None:
            try:
                rng.choice([scheduler.sessions.hard_cut, scheduler.sessions.close])(name)
            except SessionBusyError:
                if rng.random() < 0.2:
                    assert scheduler.abort(session.turn.request_id)
                    session.end_turn()
                return
            raise AssertionError("a busy session was changed")
        deed = rng.random()
        if deed < 0.4 or not session.history:
            tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
            if rng.random() < 0.3:
                tokens = [7, 8, 9, 10] * rng.randint(1, 4)
            scheduler.sessions.append(name, tokens)
            session.history += tokens
        elif deed < 0.45:
            self.soft_cut(session)
        elif deed < 0.85:
            self.generate(session)
        elif deed < 0.9:
            self.cut(session)
        elif deed < 0.96:
            self.recompute(session, rng.randint(1, 30))
        else:
            scheduler.sessions.close(name)
            del self.open[name]

    def cut(self, session: _Session) -> None:
        self.scheduler.sessions.hard_cut(session.session_id)
        session.history, session.soft_cuts, session.epoch = [], [], session.epoch + 1
        self.cuts += 1

    def soft_cut(self, session: _Session) -> None:
        rng, known = self.rng, len(session.history)
        bias, fade = rng.choice([-math.inf, -1.0, -0.5]), rng.choice([0, 5, 40])
        try:
            self.scheduler.sessions.soft_cut(session.session_id, bias, fade)
        except RequestError as error:
            assert known <= self.sinks and "nothing before the cut" in str(error)
            return
        session.soft_cuts.append(SoftCut(self.sinks, known, bias, fade))
        self.soft_cuts += 1

    def recompute(self, session: _Session, last_n: int) -> None:
        self.scheduler.sessions.recompute(session.session_id, last_n)
        places = list(range(len(session.history)))
        first = max(self.sinks, len(places) - last_n)
        kept = [place for place in places if place < self.sinks or place >= first]
        session.history = [session.history[place] for place in kept]
        cuts, session.soft_cuts = session.soft_cuts, []
        for cut in cuts:
            before = sum(place < cut.position for place in kept)
            if before > self.sinks:
                session.soft_cuts.append(cut._replace(position=before))

    def generate(self, session: _Session) -> None:
        rng = self.rng
        params = SamplingParams(
            max_tokens=rng.randint(1, 20), presence_penalty=rng.choice([0.0, 1.0])
        )
        known = self.scheduler.sessions.get(session.session_id)
        assert list(known.history) == session.history
        assert known.cache_epoch == session.epoch
        self.num_turns += 1
        request = Request(
            request_id=f"t{self.num_turns}",
            prompt_token_ids=known.input_token_ids,
            params=params,
            max_tokens=params.max_tokens or 1,
            seed=rng.randrange(1000),
            arrival=self.last_time,
            eos_token_ids=frozenset([EOS]),
            cache_salt=session.salt,
            **random_place(rng, self.policy),
        )
        try:
            self.groups.append(self.scheduler.add_turn(session.session_id, request))
        except RequestError as error:
            assert "never fit" in str(error)
            self.recompute(session, 3)
            return
        session.turn = request
        session.expected = expected_turn(session.history, request, self.windows, session.soft_cuts)

    # -- the run ---------------------------------------------------------------------------

    def submit(self, number: int) -> None:
        super().submit(number)
        group = self.scheduler.group(f"r{number}")
        if group is not None:
            self.groups.append(group)

    def expected_of(self, request: Request) -> list[list[int]]:
        for session in self.open.values():
            if session.turn is request:
                return [session.expected]
        return super().expected_of(request)

    def take_expired(self, step: Step, now: float) -> None:
        for session in self.open.values():  # its input stays in its history
            if session.turn is not None and self.scheduler.group(session.turn.request_id) is None:
                assert not session.output
                self.requests[session.turn.request_id] = session.turn
                self.outputs[session.turn.request_id] = []
                self.num_expired_turns += 1
                session.end_turn()
        super().take_expired(step, now)

    def step(self, now: float) -> None:
        self.pass_time(now)
        by_turn = {s.turn.request_id: s for s in self.open.values() if s.turn is not None}
        self.propose()
        step = self.scheduler.schedule(now)
        self.take_expired(step, now)
        self.check()
        if not self.scheduler.has_work:
            self.executor.execute(step)
            return
        assert step.chunks, "a scheduler with work must compute something"
        self.decisions.update(decision.what.value for decision in step.decisions)
        self.decisions.update(d.what.value + " idle" for d in step.decisions if "idle" in d.why)
        if self.rng.random() < 0.1:  # while the step is under way
            self.act(now)
            self.check()
        result = self.executor.execute(step)
        self.failed_moves += len(result.failed_moves)
        self.pass_time(now + 0.5)

        def is_over(progress: Progress) -> bool:
            request_id = progress.request.request_id
            if request_id not in by_turn:
                self.note(progress, result)
                return False
            assert progress.sample is not None
            session = by_turn[request_id]
            session.output.append(progress.sample.token_id)
            stopped = self.rng.random() < 0.03  # by a stop string
            if progress.finish_reason is not None:
                assert session.output == session.expected
            if progress.finish_reason is not None or stopped:
                session.end_turn()
            return stopped

        take_in(self.scheduler, step, result, now + 0.5, is_over)
        self.check()
        self.check_roster()
        for number, kv_group in enumerate(self.kv_groups()):
            self.executor.poison(number, kv_group.device._blank)

    def run(self) -> None:
        clock = 0
        while clock < TICKS or self.scheduler.has_work:
            if clock < TICKS:
                self.act(float(clock))
                if self.rng.random() < 0.1:
                    self.submit(clock)
                self.check()
            if self.scheduler.has_work:
                self.step(float(clock))
            clock += 1
            assert clock < 20_000, "no progress"
        for name in list(self.open):
            self.scheduler.sessions.close(name)
        self.check()
        charged = sum(group.memory.block_seconds for group in self.groups)
        assert abs(charged - self.held_seconds) < 1e-6, "each pays for its time"
        usage = self.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"
        assert self.scheduler.running == self.scheduler.waiting == []
