"""Requests cut to what a model takes, what was lost by that, and blocks by what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from quire.engine.traces.request import Segment, TraceRequest


class Cut(NamedTuple):
    """What a model's length leaves out. A lower limit alone is not a cut: no token is lost."""

    requests: int = 0
    tokens: int = 0
    of_tokens: int = 0  # of all requests, before

    def __str__(self) -> str:
        share = self.tokens / (self.of_tokens or 1)
        return f"{self.requests:,} cut, which loses {share:.1%} of all tokens"


class Clipping:
    """A workload as a model of some length can serve it. ``cut``: so far."""

    def __init__(self, workload: Iterable[TraceRequest], max_model_len: int | None) -> None:
        self.cut = Cut()
        self._workload = workload
        self._max_model_len = max_model_len

    def __iter__(self) -> Iterator[TraceRequest]:
        self.cut = Cut()
        longest = self._max_model_len
        for request in self._workload:
            fitting = request if longest is None else clipped(request, longest)
            before, after = _tokens(request), _tokens(fitting)
            requests, lost, of_tokens = self.cut
            self.cut = Cut(requests + (after < before), lost + before - after, of_tokens + before)
            yield fitting


def _tokens(request: TraceRequest) -> int:
    return request.prompt_tokens + request.output_tokens


def clipped(request: TraceRequest, max_model_len: int) -> TraceRequest:
    """The request as a model of this length can serve it: one token in and one out at least.

    The prompt is cut first to leave room for the output, the output to half of the length.
    """
    output = max(1, min(request.output_tokens, max_model_len // 2))
    prompt = max(1, min(request.prompt_tokens, max_model_len - output))
    limit = request.max_tokens and max(output, min(request.max_tokens, max_model_len - prompt))
    if (prompt, output, limit) == (
        request.prompt_tokens,
        request.output_tokens,
        request.max_tokens,
    ):
        return request
    known = prompt if prompt < request.prompt_tokens else prompt + output
    return replace(
        request,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=limit,
        content=_cut(request.content, known),
    )


def asking_pow2(request: TraceRequest, max_model_len: int) -> TraceRequest:
    """The request with a limit of the power of two from its output up, if there is room.

    The paper's Orca (Pow2) "over-reserves the space for outputs by at most 2×" (Kwon et al.,
    section 6.1).
    """
    limit = 1 << (request.output_tokens - 1).bit_length()
    return replace(request, max_tokens=min(limit, max_model_len - request.prompt_tokens))


def block_names(
    content: Sequence[Segment], num_tokens: int, block_size: int, own_name: str
) -> list[bytes]:
    """Names of the full blocks of ``num_tokens`` tokens that begin with ``content``.

    Two blocks have one name exactly if they hold the same tokens after the same tokens. What the
    content does not cover is a last segment called ``own_name``.
    """
    content = _cut(content, num_tokens)
    covered = sum(segment.num_tokens for segment in content)
    names: list[bytes] = []
    path, start, end = b"", 0, block_size
    for name, length in (*content, Segment(own_name, num_tokens - covered)):
        place = blake2b(path + repr(name).encode(), digest_size=12).digest()
        stop = start + length
        if end <= stop:
            ends = range(end, stop + 1, block_size)
            names += [place + (one - start).to_bytes(4, "big") for one in ends]
            end = ends[-1] + block_size
        path, start = place + length.to_bytes(4, "big"), stop
    return names


def _cut(content: Sequence[Segment], num_tokens: int) -> tuple[Segment, ...]:
    """The first ``num_tokens`` tokens of the content."""
    kept = []
    for segment in content:
        if num_tokens <= 0:
            break
        kept.append(Segment(segment.name, min(segment.num_tokens, num_tokens)))
        num_tokens -= segment.num_tokens
    return tuple(kept)
