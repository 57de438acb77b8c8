"""One life: an engine over a device of integers, and everything that happens to it."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import quire
from lives.device import LOST, SPOILT, Device, Pool, States
from lives.drafter import Drafter
from lives.oracle import Oracle
from lives.script import (
    ADAPTERS,
    Abort,
    Ask,
    Cut,
    Event,
    Life,
    Open,
    Reset,
    Settings,
    Turn,
)
from lives.texts import EOS, VOCAB, Answer, Beam, Text, beams_of, score, vector
from quire.blocks.events.events import BlockEvent, BlockEvents
from quire.blocks.offloading import offloading_to
from quire.capabilities.fairness import accounts_of
from quire.capabilities.sessions import Ring, SessionManager, SessionRules
from quire.core.errors import EngineError, QueueTimeoutError, RequestError, SessionBusyError
from quire.core.memory import (
    KeptState,
    KVAllocator,
    LayeredAllocator,
    PagedAllocator,
    SharedPages,
    SharedPool,
    SnapshotPlaces,
    StateAllocator,
    Window,
)
from quire.core.protocol import TO_DRAFT, Request, SoftCut, Step
from quire.core.scheduling import (
    BatchLimits,
    Caching,
    Capability,
    Hooks,
    Queueing,
    Recovery,
    Scheduler,
    SequenceGroup,
)
from quire.engine.capabilities import Capabilities
from quire.engine.engine import Engine, ExecutorTraits
from quire.engine.input_processor import (
    InputProcessor,
    ModelOutputs,
    PreparedParams,
    PreparedRequest,
)
from quire.engine.outputs import Delta
from quire.text.params import SamplingParams
from quire.text.stop_strings import StopAutomaton
from quire.text.tokenizer import load_tokenizer
from support.fake_source import FakeSource

_TOKENIZER = load_tokenizer(Path(quire.__file__).parent / "models/demo")
_PROCESSOR = InputProcessor(_TOKENIZER, ModelOutputs(VOCAB, [EOS]), max_model_len=None, seed=0)
_MOST_STEPS = 3000  # a life takes some dozens


def make_allocator(settings: Settings) -> KVAllocator:
    """A paged one, or one for each KV group, of which the last may keep states."""
    size, host = settings.block_size, settings.host_blocks
    kv_groups = []
    if settings.units:
        share = (1 + settings.share * (len(settings.spans) - 1)) * max(settings.spans)
        room = settings.blocks * share + settings.states * settings.slot_units
        count = int(room / settings.units) + 1 + (settings.states > 0)
        pages = SharedPages(count, settings.units)
        for span, (tokens, sinks) in zip(settings.spans, settings.windows, strict=True):
            window = None if tokens is None else Window(tokens, settings.step_tokens, sinks)
            pool = SharedPool(pages, span)
            kv_groups.append(PagedAllocator(pool.num_blocks, size, host, window, pool))
        slots = SharedPool(pages, settings.slot_units) if settings.slot_units else None
        return LayeredAllocator(size, kv_groups, _states(settings, kv_groups[0], slots), pages)
    for tokens, sinks in settings.windows:
        blocks, window = settings.blocks, None
        if tokens is not None:
            blocks = max(1, int(blocks * settings.share))
            window = Window(tokens, settings.step_tokens, sinks)
        kv_groups.append(PagedAllocator(blocks, size, host, window))
    states = _states(settings, kv_groups[0], None)
    if states is None and len(kv_groups) == 1:
        return kv_groups[0]
    return LayeredAllocator(size, kv_groups, states)


def _states(
    settings: Settings, first: PagedAllocator, slots: SharedPool | None
) -> StateAllocator | None:
    """slots: on pages; None: as many as ``settings`` say."""
    if not settings.states:
        return None
    size, every = settings.block_size, settings.every * settings.block_size
    count = settings.states if slots is None else slots.num_blocks
    alive = lambda name: first.locate(name) is not None  # noqa: E731
    kept = KeptState(every, every, drafts=4, whole=settings.draft_model == "states")
    return StateAllocator(count, size, settings.host_blocks, kept, alive, slots)


def _drafter(settings: Settings, pools: Sequence[Pool], rng: random.Random) -> Drafter | None:
    """The life's draft model, with as many slots as the target has."""
    if not settings.draft_model:
        return None
    keeps_states = settings.draft_model == "states"
    own = copy.deepcopy([one for one in pools if keeps_states or not isinstance(one, States)])
    return Drafter(own, (LOST, SPOILT), rng, keeps_states=keeps_states)


class Account:
    """A session as its user keeps account of it."""

    def __init__(self) -> None:
        self.history: list[int] = []
        self.cuts: list[SoftCut] = []
        self.turn: Answer | None = None


class Listener(Capability):
    """Hears what enters and leaves the prefix cache, as an EventPublisher does."""

    def __init__(self, hear: Callable[[Sequence[BlockEvent]], None]) -> None:
        self.hear = hear

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        self.events = BlockEvents.of(scheduler)

    def contents_change(self, scheduler: Scheduler) -> None:
        if self.events is not None:
            self.hear(self.events.take())


class Run(Capability):
    """Lives a life; an AssertionError, or whatever the engine raises, says what was wrong."""

    def __init__(
        self, life: Life, allocator: Callable[[Settings], KVAllocator] = make_allocator
    ) -> None:
        self.life, settings = life, life.settings
        self.rng = random.Random(life.number)
        self.now = 0.0
        self.scheduler = self._make_scheduler(settings, allocator(settings))
        kv_groups = self.scheduler.allocator.views()
        ids = [view.share.num_units if view.share else view.num_blocks for view in kv_groups]
        size, host = settings.block_size, settings.host_blocks
        pools = [
            Pool(sight, count, size, host)
            for sight, count in zip(settings.windows, ids, strict=not settings.states)
        ]
        if settings.states:
            pools.append(States(ids[-1], host))
        drafter = _drafter(settings, pools, self.rng)
        self.device = Device(settings, pools, self.rng, self._text_of, self.source, drafter)
        self.oracle = Oracle(self.scheduler, self.device)
        self.device.planned = self._planned
        self.device.during = self._during
        self.device.fault = self._fault
        hooks: Any = self  # has those of a Speculation
        rules = SessionRules(
            why_no_soft_cuts="there are states" if settings.states else None,
            max_num_sessions=8,
            ring=Ring(settings.sinks),
        )
        events: Any = Listener(self.hear) if settings.watched else None
        self.engine = Engine(
            self.scheduler, self.device, _PROCESSOR, ExecutorTraits(run_ahead=settings.ahead),
            capabilities=Capabilities(
                SessionManager(rules, lambda: self.now), speculation=hooks, events=events
            ),
            clock=lambda: self.now,
        )  # fmt: skip
        self.asked: dict[str, Ask | Turn] = {}  # all that have been
        self.requests: dict[str, Request] = {}
        self.answers: dict[tuple[str, int], Answer] = {}
        self.outputs: dict[str, list[list[int]]] = {}
        self.live: dict[str, None] = {}
        self.groups: list[SequenceGroup] = []  # all that have been
        self.by_name: dict[str, SequenceGroup] = {}
        self.sessions: dict[str, Account] = {}
        self.turns: dict[str, Account] = {}
        self._faults: list[str] = []
        self._mid: list[Event] = []
        self._later: list[Turn | Cut] = []
        self._read: dict[bytes, float] = {}  # when each adapter will have been read

    def _make_scheduler(self, settings: Settings, allocator: KVAllocator) -> Scheduler:
        self.source = None
        if settings.forgets is not None:
            self.source = FakeSource(self.life.number, settings.forgets)
        size, places = settings.block_size, None
        if settings.states:
            places = SnapshotPlaces(settings.every * size, size, settings.every * size)
        caching = Caching(offloading_to(self.source), places) if settings.caching else None
        return Scheduler(
            allocator,
            BatchLimits(settings.seqs, settings.step_tokens, settings.slots),
            Queueing(settings.policy, settings.max_queue_time, accounts_of(settings.policy)),
            Recovery(settings.mode, settings.costs),
            caching,
        )

    # -- what the engine and the device ask ----------------------------------------------------

    def _text_of(self, request: Request, branch: int) -> Text:
        name = request.request_id
        if request.params.use_beam_search:
            return Beam(request, request.prompt_token_ids)
        if (name, branch) not in self.answers:
            asked = self.asked[name]
            stop = asked.stop if isinstance(asked, Ask) else None
            self.answers[name, branch] = Answer(request, branch, stop=stop)
        return self.answers[name, branch]

    def _planned(self, step: Step) -> None:
        self.oracle.planned(step)
        self.oracle.ledger.planned(step)

    def _during(self) -> None:
        """A step is under way, and nothing is planned ahead of it."""
        for event in self._mid:
            self._do(event)
        self._mid.clear()

    def _fault(self) -> str:
        return self._faults.pop() if self._faults else ""

    def prepare(self, scheduler: Scheduler) -> None:
        """A hook: adapters take a while to be read."""
        if self.life.settings.slow_adapters:
            for adapter in scheduler.adapters.wanted:
                self._read.setdefault(adapter.fingerprint, self.now + 2.0)
            read = {a for a in ADAPTERS if self._read.get(a.fingerprint, self.now + 1) <= self.now}
            scheduler.adapters.ready = read

    def propose(self, scheduler: Scheduler) -> None:
        """A hook: drafts that are right, wrong, or right up to some place."""
        right, rng = self.life.settings.right_drafts, self.rng
        if right is None:
            return
        for group in scheduler.running:
            if group.beams is not None or not group.expanded:
                continue
            for branch in group.branches:
                if rng.random() < 0.3:
                    continue
                text, known = self._answer(group.request, branch.index), len(branch.token_ids)
                count = rng.randint(1, 6)
                drafts = text.upto(known + count)[known : known + count]
                if rng.random() >= right:
                    wrong = rng.randrange(count)
                    drafts[wrong] = (drafts[wrong] + 1) % VOCAB
                if self.life.settings.draft_model:
                    told = rng.randint(0, count)
                    drafts[told:] = [TO_DRAFT] * (count - told)
                scheduler.propose(branch.seq_id, drafts)

    def waits(self, scheduler: Scheduler) -> bool:
        """A hook: whether drafts are worth more than planning ahead."""
        return self.life.settings.right_drafts is not None and self.rng.random() < 0.5

    def hear(self, events: Sequence[BlockEvent]) -> None:
        """What the listener has heard."""
        self.oracle.hear(events)  # which are all that can be found

    # -- events --------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        if isinstance(event, Ask):
            self._ask(event)
        elif isinstance(event, Turn):
            self._turn(event)
        elif isinstance(event, Abort):
            if self.live:
                self._abort([*self.live][event.which % len(self.live)])
        elif isinstance(event, Open):
            if event.session not in self.sessions:
                name = event.session
                self.engine.sessions.open(name, event.salt, event.client, event.adapter)
                self.sessions[name] = Account()
                self.groups.append(self.engine.sessions.get(name).resting)
        elif isinstance(event, Cut):
            if event.session in self.sessions:
                self._cut(event, self.sessions[event.session])
        elif isinstance(event, Reset):
            self.engine.reset_prefix_cache()
        else:
            kind = "submit" if event.at_once else "collect"
            self._faults.append("number" if event.no_number else kind)

    def _ask(self, event: Ask) -> None:
        request = event.request()
        self.asked[event.name], before = event, self.scheduler.allocator.usage()
        stops = StopAutomaton(request.params.stop) if request.params.stop else None
        try:
            self.engine.submit(PreparedRequest(request, None, event.prompt, stops))
        except RequestError:
            self.oracle.happened["refuse"] += 1
            assert self.scheduler.allocator.usage() == before, "a refusal leaves something"
            return
        self._note_begin(request)

    def _note_begin(self, request: Request) -> None:
        name = request.request_id
        group = self.scheduler.group(name)
        assert group is not None
        self.live[name], self.requests[name] = None, request
        self.by_name[name] = group
        self.groups.append(group)
        self.outputs[name] = [[] for _ in range(request.params.num_outputs)]
        self.oracle.happened["beams"] += request.params.use_beam_search
        self.oracle.happened["forks"] += request.params.width > 1

    def _turn(self, event: Turn) -> None:
        account = self.sessions.get(event.session)
        if account is None:
            return
        if account.turn is not None:
            self._later.append(event)  # one after the other
            return
        name, sessions = f"{event.session}{event.at}", self.engine.sessions
        if event.tokens:
            sessions.append(event.session, event.tokens)
            account.history += event.tokens
        assert list(sessions.get(event.session).history) == account.history
        params = SamplingParams(max_tokens=event.max_tokens, seed=event.seed, detokenize=False)
        self.asked[name] = event
        try:
            prepared = PreparedParams(params)
            self.engine.submit_turn(name, event.session, prepared, event.priority)
        except RequestError:
            self.oracle.happened["refuse"] += 1
            return
        group = self.scheduler.group(name)
        assert group is not None
        request = group.request
        answer = Answer(request, 0, account.history, tuple(account.cuts))
        self.answers[name, 0] = account.turn = answer
        self.turns[name] = account
        self._note_begin(request)
        self.oracle.happened["turns"] += 1

    def _abort(self, name: str) -> None:
        if self.scheduler.group(name) is None:
            return  # it has expired in this very step, of which nobody has been told
        assert self.engine.abort(name)
        self.oracle.happened["abort"] += 1
        self.oracle.ledger.unsound()
        self._leave(name)

    def _leave(self, name: str) -> None:
        """It has ended before its text has, for whatever reason."""
        del self.live[name]
        assert self.scheduler.group(name) is None
        self._end_turn(name)

    def _end_turn(self, name: str) -> None:
        account = self.turns.pop(name, None)
        if account is not None:
            account.history += self.outputs[name][0]
            account.turn = None

    def _cut(self, event: Cut, account: Account) -> None:
        """Nothing is changed under a turn; else the session holds just what it says."""
        name, sessions, history = event.session, self.engine.sessions, account.history
        verb: Callable[[], None]
        if event.hard:
            verb = lambda: sessions.hard_cut(name)  # noqa: E731
        elif event.soft is not None:
            bias, fade = event.soft
            verb = lambda: sessions.soft_cut(name, bias, fade)  # noqa: E731
        elif event.last:
            verb = lambda: sessions.recompute(name, event.last)  # noqa: E731
        else:
            verb = lambda: sessions.end(name)  # noqa: E731
        session, held = self.engine.sessions.get(name), self._held_by(name)
        before = sum(one.device.num_held for one in self.oracle.kv_groups)
        busy = account.turn is not None
        if busy and self.engine.sessions.get(name).turn is None:
            return  # it has expired in this very step, of which nobody has been told
        try:
            verb()
        except SessionBusyError:
            assert busy
            self._later.append(event)  # once the turn is over
            return
        except RequestError:
            sinks = self.life.settings.sinks
            if event.soft is not None and self.life.settings.states:
                return
            assert len(history) <= (sinks if event.soft else 0), "there was something to be cut"
            return
        assert not busy, "a busy session was changed"
        sinks = self.life.settings.sinks
        self.oracle.happened["cuts"] += 1
        if event.soft is not None:
            account.cuts.append(SoftCut(sinks, len(history), *event.soft))
            return
        gained = before - sum(one.device.num_held for one in self.oracle.kv_groups)
        assert gained == held and not session.resting.tables(), "a cut gives back what is held"
        if event.hard:
            account.history, account.cuts = [], []
        elif event.last:
            first = max(sinks, len(history) - event.last)
            moved = max(0, first - min(sinks, len(history)))
            account.history = [*history[:sinks], *history[first:]]
            shifted = [cut._replace(position=cut.position - moved) for cut in account.cuts]
            account.cuts = [cut for cut in shifted if cut.position > sinks]
        else:
            del self.sessions[name]

    def _held_by(self, session: str) -> int:
        """Device blocks that nobody else holds."""
        group, allocator = self.engine.sessions.get(session).resting, self.scheduler.allocator
        if group.status.value == "swapped":
            return 0
        return sum(
            view.num_holders(block) == 1
            for seq_id in group.tables()
            for view, table in zip(
                allocator.views(), allocator.table(seq_id).kv_groups, strict=True
            )
            for block in table.block_ids
        )

    # -- the life ------------------------------------------------------------------------------

    def go(self) -> Counter[str]:
        """What has happened, how often."""
        coming, engine = list(reversed(self.life.events)), self.engine
        tick = 0
        while coming or engine.has_work or self._later:
            self._do_later()
            while coming and coming[-1].at <= tick:
                self._begin(coming.pop())
            if engine.has_work:
                self.now += 1.0
                self.step()
            tick = tick + 1 if engine.has_work or not coming else max(tick + 1, coming[-1].at)
            self.now = max(self.now, float(tick))
            assert tick < _MOST_STEPS, "no progress"
        self._end()
        return self.oracle.happened

    def _do_later(self) -> None:
        """What waits for the end of a session's turn."""
        later, self._later = self._later, []
        for event in later:
            account = self.sessions.get(event.session)
            if account is None or account.turn is None:
                self._do(event)
            else:
                self._later.append(event)

    def _begin(self, event: Event) -> None:
        if getattr(event, "mid", False) and not self.life.settings.ahead:
            self._mid.append(event)
        else:
            self._do(event)

    def step(self) -> None:
        oracle, device = self.oracle, self.device
        oracle.ledger.open()
        deltas = self.engine.step()
        if device.complaint is not None:
            raise device.complaint
        for delta in deltas:
            self._hear(delta)
        oracle.happened["charges"] += oracle.ledger.close()
        self.check()
        pending = self.engine._pending
        for number, kv_group in enumerate(oracle.kv_groups):
            pool = kv_group.device
            owned, names = enumerate(pool.ref_counts), pool._hashes
            blank = [block for block, owners in owned if not owners and block not in names]
            if blank:
                device.enqueue(lambda n=number, blocks=blank: device.free(n, blocks))  # type: ignore[misc]
        if pending is None:
            device.drain()

    def check(self) -> None:
        """Between two steps."""
        pending = self.engine._pending
        self.oracle.check(None if pending is None else pending.step)

    def _hear(self, delta: Delta) -> None:
        """One more piece of an output must be the next one of its text."""
        name, request = delta.request_id, self.requests[delta.request_id]
        if name not in self.live:
            return  # its end is told once it has been aborted
        if delta.failure is not None:
            self.oracle.ledger.unsound()
            self.oracle.happened[type(delta.failure).__name__] += 1
            if isinstance(delta.failure, QueueTimeoutError):
                most = self.life.settings.max_queue_time or 0.0
                assert self.now - request.arrival > most > 0
                assert not any(self.outputs[name])
            else:
                assert isinstance(delta.failure, EngineError) and self.device.failed, delta.failure
                assert name in self.device.failed or "lost" in str(delta.failure), delta.failure
            self._leave(name)
            return
        output = self.outputs[name][delta.index]
        output += delta.token_ids
        if not request.params.use_beam_search:
            answer = self._answer(request, delta.index) if delta.token_ids else None
            wanted = [] if answer is None else answer.output()[: len(output)]
            assert output == wanted, f"{name} is answered {output}, not {wanted}"
        if delta.final is not None:
            self._finish(name, request, delta)

    def _finish(self, name: str, request: Request, delta: Delta) -> None:
        assert self.scheduler.group(name) is None
        final = delta.final
        assert final is not None
        if request.params.use_beam_search:
            assert self.outputs[name] == beams_of(request), f"beams of {name}"
        else:
            for branch, output in enumerate(self.outputs[name]):
                assert output == self._answer(request, branch).output(), f"the end of {name}"
        text = self._text_of(request, 0)
        if request.pooling is not None:
            last = text.keys[len(request.prompt_token_ids) - 1]
            assert final.vector is not None and list(final.vector) == vector(last)
        if request.params.prompt_logprobs is not None:
            scores = self.by_name[name].scores
            assert scores is not None
            pairs = zip(text.keys, request.prompt_token_ids[1:], strict=False)
            assert [*scores] == [None, *(score(key, token) for key, token in pairs)], "scores"
        del self.live[name]
        self._end_turn(name)
        self.oracle.happened["ends"] += 1

    def _answer(self, request: Request, branch: int) -> Answer:
        text = self._text_of(request, branch)
        assert isinstance(text, Answer)
        return text

    def _end(self) -> None:
        assert not self.live, f"nobody was told of {self.live}"
        for name in [*self.sessions]:
            self.engine.sessions.end(name)
        self.check()
        self.oracle.check_end()
        if self.oracle.kv_groups:
            charged = sum(group.memory.block_seconds for group in self.groups)
            assert abs(charged - self.oracle.held_seconds) < 1e-6, "each pays for its time"
        self.engine.close()


def live(life: Life) -> Counter[str]:
    return Run(life).go()
