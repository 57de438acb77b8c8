"""A request under way in a simulation, as the scheduler gets it and as its story unfolds."""

from __future__ import annotations

from quire.core.errors import RequestError
from quire.core.limits import EngineLimits
from quire.core.protocol import Adapter, Outcome, Request, Sample, Verdict
from quire.core.scheduling import SequenceGroup
from quire.engine.metrics import RequestMetrics
from quire.engine.traces.request import TraceRequest
from quire.text.params import SamplingParams
from quire_lab.simulation.acceptance import Profiles
from quire_lab.simulation.result import Preempted, RequestRecord
from quire_lab.workload.clipping import block_names

END = 2**32 - 1  # no prompt has it
"""The token that ends a text before its limit."""

_OWN = 1024  # tokens of a request's own: no two outputs or beams of two requests are alike


def own_token(request_id: str, index: int) -> int:
    """The token that the branch of this index repeats; or a beam's candidate of this rank."""
    return int(request_id) % (END // _OWN) * _OWN + index


class LiveRequest:
    """The state of a request while it waits or runs."""

    __slots__ = (
        "_preemptions",
        "acceptance",
        "admitted",
        "first_token_time",
        "group",
        "last_times",
        "num_accepted_tokens",
        "num_draft_tokens",
        "num_drafts",
        "num_output_tokens",
        "outcomes",
        "output_tokens",
        "request",
        "to_end",
        "trace",
    )

    def __init__(
        self,
        trace: TraceRequest,
        request: Request,
        group: SequenceGroup,
        acceptance: Profiles | None,
    ) -> None:
        self.trace = trace
        self.acceptance = acceptance  # None: nothing is drafted
        self.output_tokens = trace.output_tokens
        self.request = request
        self.group = group
        self.admitted: float | None = None
        self.first_token_time: float | None = None
        self.last_times: dict[int, float] = {}  # of each output's last token
        self.num_output_tokens = 0
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.to_end = request.params.num_outputs if trace.beam_search else trace.n
        # Of its outputs' steps: made once, since a text says one token again and again.
        tokens = (own_token(request.request_id, i) for i in range(self.to_end))
        self.outcomes = [Outcome((Sample(token),)) for token in tokens]
        self._preemptions: list[Preempted] = []

    def has_token_of(self, now: float) -> bool:
        """Whether all that it still writes has got a token just then."""
        return all(self.last_times.get(branch.index) == now for branch in self.group.branches)

    def decided(self, what: Verdict, now: float) -> None:
        """The scheduler has let it run, or taken its blocks."""
        if what in (Verdict.ADMIT, Verdict.RESUME):
            if self.admitted is None:
                self.admitted = now
            if self._preemptions:
                self._preemptions[-1] = self._preemptions[-1]._replace(until=now)
        elif what.preempts:
            self._preemptions.append(Preempted(what.value, now, None))

    def verified(self, drafted: int, accepted: int) -> None:
        """Count the drafts of one of its outputs that a step has verified."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted

    def record(self, finished: float) -> RequestRecord:
        memory = self.group.memory
        metrics = RequestMetrics(
            arrival_time=self.trace.arrival,
            first_token_time=self.first_token_time,
            finished_time=finished,
            num_prompt_tokens=self.trace.prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            cached_tokens=memory.cached_tokens,
            peak_blocks=memory.peak_blocks,
            block_seconds=memory.block_seconds,
            shared_blocks=memory.shared_blocks,
            copied_blocks=memory.copied_blocks,
            num_swaps=memory.num_swaps,
            num_recomputes=memory.num_recomputes,
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )
        return RequestRecord(
            self.request.request_id, metrics, self.admitted, tuple(self._preemptions)
        )


class RequestMaker:
    """Makes the scheduler's requests of a workload's. Memory sees lengths and names of blocks."""

    def __init__(self, limits: EngineLimits) -> None:
        self._block_size = limits.block_size
        self._names_blocks = limits.enable_prefix_caching
        self._longest = limits.max_model_len
        self._params: dict[tuple[int, bool], SamplingParams] = {}

    def make(self, number: int, trace: TraceRequest, arrival: float) -> Request:
        """A request of the engine. ``arrival``: when it was sent here.

        RequestError: SamplingParams cannot express the trace's request, or it is too long.
        """
        self._check_length(trace)
        kind = (trace.n, trace.beam_search)
        if kind not in self._params:
            self._params[kind] = SamplingParams(n=trace.n, use_beam_search=trace.beam_search)
        limit = trace.output_tokens
        if trace.max_tokens is not None and not trace.beam_search:
            limit = trace.max_tokens
        request_id, hashes = str(number), []
        if self._names_blocks:
            # A beam's tokens are only known once it has been chosen, so they are hashed.
            known = trace.prompt_tokens + (0 if trace.beam_search else trace.output_tokens)
            hashes = block_names(trace.content, known, self._block_size, f"own {number}")
        adapter = None
        if trace.adapter is not None:
            adapter = Adapter(trace.adapter.encode(), trace.adapter)
        return Request(
            request_id=request_id,
            prompt_token_ids=(0,) * trace.prompt_tokens,
            params=self._params[kind],
            max_tokens=limit,
            seed=0,
            arrival=arrival,
            eos_token_ids=frozenset([END]) if limit > trace.output_tokens else frozenset(),
            cache_salt=request_id,  # for what has no name: it is like nothing else
            adapter=adapter,
            block_hashes=hashes,
        )

    def _check_length(self, trace: TraceRequest) -> None:
        length = trace.prompt_tokens + max(trace.output_tokens, trace.max_tokens or 0)
        most = self._longest
        if most is not None and length > most:
            raise RequestError(
                f"{length} tokens of prompt and output are more than max_model_len, {most}",
                "prompt",
            )
