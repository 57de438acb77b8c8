"""What is written down of each request when a trace is recorded: no text."""

from __future__ import annotations

from quire.engine.progress import RequestProgress
from quire.memory import hash_blocks
from quire.scheduling import Request
from quire.workload import TraceRequest, TraceWriter


class RequestRecorder:
    """Turns the engine's requests into lines of a trace, in order of arrival.

    A request that was aborted counts as one that had no more to say; one that gave no token is
    left out.
    """

    def __init__(self, writer: TraceWriter, block_size: int, started: float) -> None:
        """``started``: the time, on the engine's clock, that the trace counts from."""
        self._writer = writer
        self._block_size = block_size
        self._started = started
        self._tickets: dict[str, int] = {}

    def begin(self, request: Request) -> None:
        arrival = max(0.0, request.arrival - self._started)
        self._tickets[request.request_id] = self._writer.begin(arrival)

    def end(self, progress: RequestProgress) -> None:
        request, params = progress.request, progress.request.params
        outputs = [branch.output.token_ids for branch in progress.branches]
        ticket = self._tickets.pop(request.request_id)
        longest = max(map(len, outputs))
        if not longest:
            self._writer.end(ticket, None)
            return
        tokens = [*request.prompt_token_ids, *(outputs[0] if len(outputs) == 1 else ())]
        # The salt keeps the blocks of different tenants apart, as it does in the cache.
        root = request.cache_salt.encode()
        trace = TraceRequest(
            arrival=request.arrival,
            prompt_tokens=len(request.prompt_token_ids),
            output_tokens=longest,
            n=params.width,
            beam_search=params.use_beam_search,
            max_tokens=request.max_tokens,
        )
        self._writer.end(ticket, trace, hash_blocks(root, tokens, self._block_size))

    def close(self) -> None:
        """Write what is still held back. Nothing can be recorded any more."""
        self._writer.close()
