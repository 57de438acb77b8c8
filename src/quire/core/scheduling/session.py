"""A session: one sequence that lives from turn to turn."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

from quire.core.errors import RequestError
from quire.core.memory import KVAllocator
from quire.core.protocol.request import Request
from quire.core.protocol.soft_cut import SoftCut
from quire.core.scheduling.sequence import Sequence, SequenceGroup, Status


class Session:
    """One sequence, and who holds its blocks: the turn that runs, or ``resting`` between turns.

    Its history is all that has been appended and generated since it was emptied, four bytes a
    token. While a turn runs nothing else may be done with it.
    """

    def __init__(self, session_id: str, resting: SequenceGroup, allocator: KVAllocator) -> None:
        self.session_id = session_id
        self.resting = resting
        self.turn: SequenceGroup | None = None
        self.num_input = 0  # tokens at the end of the history that no turn has begun with yet
        self._allocator = allocator

    @property
    def sequence(self) -> Sequence:
        return self.resting.branches[0]

    @property
    def history(self) -> Seq[int]:
        """The last one generated is not in the cache yet."""
        return self.sequence.token_ids

    @property
    def soft_cuts(self) -> Seq[SoftCut]:
        """Those in its history, the first one first."""
        return self.sequence.cuts

    @property
    def input_token_ids(self) -> tuple[int, ...]:
        """What has been appended since the last turn: the prompt of the next one."""
        return tuple(self.history[len(self.history) - self.num_input :])

    @property
    def idle(self) -> bool:
        """Whether it holds blocks on the device that it does not need now."""
        return self.turn is None and self.resting.status is Status.RESIDENT

    def append(self, token_ids: Seq[int]) -> None:
        self.sequence.token_ids.extend(token_ids)
        self.num_input += len(token_ids)

    def begin(self, turn: SequenceGroup) -> None:
        """Hand the sequence and its blocks over to a turn."""
        assert self.turn is None, "it has a turn under way"
        sequence, resting = self.sequence, self.resting
        sequence.num_prompt_tokens = len(sequence.token_ids)
        turn.ever_admitted = self.num_input < len(sequence.token_ids)  # else it is like any prompt
        turn.status = resting.status
        if turn.tables():  # each pays for its own time
            charge = self._allocator.charge(sequence.seq_id)
            resting.memory.block_seconds += charge
            turn.memory.block_seconds -= charge
        resting.status = Status.WAITING
        self.turn, self.num_input = turn, 0

    def end(self, *, invalid: bool) -> None:
        """Take them back from the turn. What it was given and what it generated stays."""
        sequence, resting, turn = self.sequence, self.resting, self.turn
        assert turn is not None
        self.turn = None
        resting.status = turn.status
        if turn.status is not Status.WAITING:
            turn.memory.block_seconds += self._allocator.charge(sequence.seq_id)
            resting.memory.block_seconds -= self._allocator.charge(sequence.seq_id)
            # In the midst of a step, its blocks have room for tokens that are not computed.
            unfinished = self._allocator.num_tokens(sequence.seq_id) != sequence.num_computed
            if invalid or unfinished:
                self.forget(invalid=invalid)
            elif turn.status is Status.RUNNING:
                resting.status = Status.RESIDENT

    def forget(self, *, invalid: bool = False) -> None:
        """Free its blocks; its history will be computed again."""
        if self.resting.status is not Status.WAITING:
            charge = self._allocator.free(self.sequence.seq_id, invalid=invalid)
            self.resting.memory.block_seconds += charge
        self.resting.status = Status.WAITING
        self.sequence.num_computed = 0

    def restart(self, history: Seq[int]) -> None:
        """Let ``history`` be all there is, computed afresh from position 0.

        It is the attention sinks, if anything, and then the last tokens. Cuts go with these; one
        before which only sinks are left is none any more.
        """
        self.forget()
        sequence = self.sequence
        moved = len(sequence.token_ids) - len(history)
        cuts = [cut._replace(position=cut.position - moved) for cut in sequence.cuts]
        sequence.cuts = tuple(cut for cut in cuts if cut.position > cut.first)
        sequence.token_ids = array("I", history)
        sequence.block_hashes = []
        self.num_input = min(self.num_input, len(history))


def refuse_as_turn(request: Request, session: Session) -> None:
    """RequestError for what a session's one sequence cannot do."""
    params = request.params
    if params.use_beam_search:
        raise RequestError("a session has one sequence: no beam search", "use_beam_search")
    if params.width != 1:
        field = "n" if params.n != 1 else "best_of"
        raise RequestError(f"a session has one sequence: {field} must be 1", field)
    if params.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs cannot be had in a session", "prompt_logprobs")
    if request.spans:
        raise RequestError("a session's history is of tokens: no prompt_embeds", "prompt_embeds")
    if not session.history:
        raise RequestError("append something to the session before it generates", "session_id")
