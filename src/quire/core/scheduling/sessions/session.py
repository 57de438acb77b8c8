"""A streaming session: one sequence that lives from turn to turn."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from enum import Enum
from typing import NamedTuple

from quire.core.memory import KVAllocator
from quire.core.protocol.soft_cut import SoftCut
from quire.core.scheduling.sequence import Sequence, SequenceGroup, Status

_EVENTS_KEPT = 1000


class Ring(NamedTuple):
    """What a session's history goes round in, in tokens.

    sinks: first ones, which stay.
    size: of the longest text or, where a window lets texts go on for ever, of sinks and window.
    """

    sinks: int = 0
    size: int | None = None


class SessionVerb(Enum):
    OPEN = "open"
    APPEND = "append"
    GENERATE = "generate"  # a turn begins
    END = "end"  # a turn has ended, or been aborted
    HARD_CUT = "hard_cut"
    SOFT_CUT = "soft_cut"
    RECOMPUTE = "recompute"
    CLOSE = "close"


class SessionEvent(NamedTuple):
    """One thing that happened to a session. ``number`` counts all of them, from 0."""

    number: int
    what: SessionVerb
    cache_epoch: int
    num_tokens: int  # of the history, once this was done
    request_id: str | None = None  # of the turn


class Session:
    """One sequence, and who holds its blocks: the turn that runs, or ``resting`` between turns.

    Its history is all that has been appended and generated since the last cut, four bytes a token.

    client: whose it is; None: the process's own.
    recompute_last_n: how many tokens before a turn's input it keeps, beside the sinks, when the
        ring is full; None: it goes round, or is refused more.
    when_idle: is called when a turn has ended.
    """

    def __init__(
        self,
        session_id: str,
        resting: SequenceGroup,
        client: str | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        self.session_id = session_id
        self.client = client
        self.recompute_last_n = recompute_last_n
        self.resting = resting
        self.turn: SequenceGroup | None = None
        self.when_idle: Callable[[], None] = lambda: None
        self.cache_epoch = 0
        self.num_input = 0  # tokens at the end of the history that no turn has begun with yet
        self._events: deque[SessionEvent] = deque(maxlen=_EVENTS_KEPT)
        self._num_events = 0
        self.note(SessionVerb.OPEN)

    @property
    def sequence(self) -> Sequence:
        return self.resting.branches[0]

    @property
    def history(self) -> Seq[int]:
        """Tokens since the last cut. The last one generated is not in the cache yet."""
        return self.sequence.token_ids

    @property
    def input_token_ids(self) -> tuple[int, ...]:
        """What has been appended since the last turn: the prompt of the next one."""
        return tuple(self.history[len(self.history) - self.num_input :])

    @property
    def events(self) -> list[SessionEvent]:
        """The latest thousand, oldest first."""
        return list(self._events)

    @property
    def idle(self) -> bool:
        """Whether it holds blocks on the device that it does not need now."""
        return self.turn is None and self.resting.status is Status.RESIDENT

    def note(self, what: SessionVerb, request_id: str | None = None) -> None:
        event = SessionEvent(
            self._num_events, what, self.cache_epoch, len(self.history), request_id
        )
        self._events.append(event)
        self._num_events += 1

    def append(self, token_ids: Seq[int]) -> None:
        self.sequence.token_ids.extend(token_ids)
        self.num_input += len(token_ids)
        self.note(SessionVerb.APPEND)

    def begin(self, turn: SequenceGroup, allocator: KVAllocator) -> None:
        """Hand the sequence and its blocks over to a turn."""
        sequence, resting = self.sequence, self.resting
        sequence.num_prompt_tokens = len(sequence.token_ids)
        turn.ever_admitted = self.num_input < len(sequence.token_ids)  # else it is like any prompt
        turn.status = resting.status
        if turn.tables():  # each pays for its own time
            charge = allocator.charge(sequence.seq_id)
            resting.memory.block_seconds += charge
            turn.memory.block_seconds -= charge
        resting.status = Status.WAITING
        self.turn, self.num_input = turn, 0
        self.note(SessionVerb.GENERATE, turn.request.request_id)

    def end(self, allocator: KVAllocator, *, invalid: bool) -> None:
        """Take them back from the turn. What it was given and what it generated stays."""
        sequence, resting, turn = self.sequence, self.resting, self.turn
        assert turn is not None
        self.turn = None
        resting.status = turn.status
        if turn.status is not Status.WAITING:
            turn.memory.block_seconds += allocator.charge(sequence.seq_id)
            resting.memory.block_seconds -= allocator.charge(sequence.seq_id)
            # In the midst of a step, its blocks have room for tokens that are not computed.
            unfinished = allocator.num_tokens(sequence.seq_id) != sequence.num_computed
            if invalid or unfinished:
                self.forget(allocator, invalid=invalid)
            elif turn.status is Status.RUNNING:
                resting.status = Status.RESIDENT
        self.note(SessionVerb.END, turn.request.request_id)
        self.when_idle()

    def forget(self, allocator: KVAllocator, *, invalid: bool = False) -> None:
        """Free the blocks of an idle session; its history will be computed again."""
        if self.resting.status is not Status.WAITING:
            charge = allocator.free(self.sequence.seq_id, invalid=invalid)
            self.resting.memory.block_seconds += charge
        self.resting.status = Status.WAITING
        self.sequence.num_computed = 0

    @property
    def soft_cuts(self) -> Seq[SoftCut]:
        """Those in its history, the first one first."""
        return self.sequence.cuts

    def soft_cut(self, first: int, bias: float, fade: int) -> None:
        """From here on the history so far, but for its ``first`` tokens, counts for less."""
        if bias:  # else nothing changes
            cut = SoftCut(first, len(self.history), bias, fade)
            self.sequence.cuts = (*self.sequence.cuts, cut)
        self.note(SessionVerb.SOFT_CUT)

    def restart(self, history: Seq[int], allocator: KVAllocator) -> None:
        """Let ``history`` be all there is, computed afresh from position 0.

        It is the attention sinks, if anything, and then the last tokens. Cuts go with these; one
        before which only sinks are left is none any more.
        """
        self.forget(allocator)
        sequence = self.sequence
        moved = len(sequence.token_ids) - len(history)
        cuts = [cut._replace(position=cut.position - moved) for cut in sequence.cuts]
        sequence.cuts = tuple(cut for cut in cuts if cut.position > cut.first)
        sequence.token_ids = array("I", history)
        sequence.block_hashes = []
        self.num_input = min(self.num_input, len(history))
