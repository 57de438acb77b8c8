"""What a step may hold, and what can never be served and so is refused at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import ContextLengthError, RequestError
from quire.core.memory import Demand, KVAllocator, When
from quire.core.protocol.request import Request
from quire.core.scheduling.sessions.session import Session


@dataclass(frozen=True)
class BatchLimits:
    """What runs at once, in one step.

    max_num_batched_tokens: most tokens that a step computes.
    max_adapters: most different ones that run at once (see ``AdapterSlots``). None: any number.
    whole_prompts: each is computed in one step, which must have room for the longest.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_adapters: int | None = None
    whole_prompts: bool = False

    def refuse_too_wide(self, request: Request) -> None:
        """RequestError where all branches of the request cannot run at once."""
        width, tokens = request.params.width, self.max_num_batched_tokens
        if width > self.max_num_seqs:
            raise RequestError(
                "n, best_of and beam_width must be at most max_num_seqs, "
                f"{self.max_num_seqs}; got {width}",
                "n",
            )
        if request.params.use_beam_search and width > tokens:
            raise RequestError(
                "beams advance together: beam_width must be at most max_num_batched_tokens, "
                f"{tokens}; got {width}",
                "beam_width",
            )


def fitted(request: Request, known: int, allocator: KVAllocator) -> Request:
    """The request; without a limit, with as many tokens as the pool can hold after ``known`` ones.

    RequestError where that is not one, or fewer than its limit.
    """
    least, most = max(request.params.min_tokens, 1), request.max_tokens
    if request.params.max_tokens is None and request.params.width > 1 and least < most:
        while least < most:  # it can hold ``least``, or nothing at all
            middle = (least + most + 1) // 2
            if _fits(replace(request, max_tokens=middle), known, allocator):
                least = middle
            else:
                most = middle - 1
        request = replace(request, max_tokens=least)
    _refuse_too_long(request, known, allocator)
    return request


def _fits(request: Request, known: int, allocator: KVAllocator) -> bool:
    try:
        _refuse_too_long(request, known, allocator)
    except RequestError:
        return False
    return True


def _refuse_too_long(request: Request, known: int, allocator: KVAllocator) -> None:
    """RequestError where the pool cannot hold ``known`` tokens and what is generated."""
    width, longest = request.params.width, known + max(request.max_tokens, 1) - 1
    forks = [(known, longest)] * (width - 1)
    for field, what, demand in (
        ("prompt", f"a prompt of {known} tokens", Demand(known, longest=known)),
        ("max_tokens", f"{longest} tokens", Demand(longest, longest=longest)),
        ("n", f"{width} branches", Demand(longest, (), forks, 0, width, longest)),
    ):
        fit = allocator.fit(demand)
        if fit.when is When.NEVER:
            text = (
                f"{what} can never fit: {fit.needed} KV blocks of "
                f"{allocator.block_size} tokens needed, the pool has {fit.capacity}"
            )
            if field == "prompt":
                room = fit.capacity * allocator.block_size
                raise ContextLengthError(text, field, known, room, room)
            raise RequestError(text, field)


def refuse_as_turn(request: Request, session: Session) -> None:
    """RequestError for what a session's one sequence cannot do."""
    params = request.params
    if params.use_beam_search:
        raise RequestError("a session has one sequence: no beam search", "use_beam_search")
    if params.width != 1:
        field = "n" if params.n != 1 else "best_of"
        raise RequestError(f"a session has one sequence: {field} must be 1", field)
    if params.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs are not told in a session", "prompt_logprobs")
    if not session.history:
        raise RequestError("append something to the session before it generates", "session_id")
