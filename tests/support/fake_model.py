"""A model whose text depends on every byte of its KV cache, and on nothing else.

The key at a position is a hash of the token there and of the key before it, *read through the
block table*; the next token is a hash of all keys, read the same way. One block freed too early,
copied too late or shared wrongly, and the text changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from quire.memory import BlockMove, MoveKind
from quire.scheduling import Request, Sample, Step, StepResult
from quire.scheduling.beam_search import BeamSearch

VOCAB = 50
EOS = 0


def _key(previous: int, token: int) -> int:
    return zlib.crc32(f"{previous},{token}".encode())


def _next_token(keys: Sequence[int], request: Request, branch: int) -> int:
    return zlib.crc32(repr((keys, request.seed, branch)).encode()) % VOCAB


def _candidates(keys: Sequence[int], count: int) -> list[tuple[int, float]]:
    """The likeliest tokens: log-probabilities are hashes of all keys, none equal."""
    scores = [(t, -0.5 - zlib.crc32(repr((keys, t)).encode()) / 2**30) for t in range(VOCAB)]
    return sorted(scores, key=lambda pair: -pair[1])[:count]


def _keys(token_ids: Sequence[int]) -> list[int]:
    keys: list[int] = []
    for token in token_ids:
        keys.append(_key(keys[-1] if keys else 0, token))
    return keys


def expected_outputs(request: Request) -> list[list[int]]:
    """The request's outputs by plain recursion, no memory involved."""
    if request.params.use_beam_search:
        return _expected_beams(request)
    return [_expected_output(request, branch) for branch in range(request.params.n)]


def _expected_output(request: Request, branch: int) -> list[int]:
    keys = _keys(request.prompt_token_ids)
    output: list[int] = []
    while True:
        output.append(_next_token(keys, request, branch))
        if output[-1] in request.eos_token_ids or len(output) == request.max_tokens:
            return output
        keys.append(_key(keys[-1], output[-1]))


def _expected_beams(request: Request) -> list[list[int]]:
    beams, outputs = BeamSearch(request), [[]]
    while True:
        candidates = [
            _candidates(_keys([*request.prompt_token_ids, *output]), beams.num_candidates)
            for output in outputs
        ]
        choices = beams.advance(len(outputs[0]) + 1, candidates, outputs.__getitem__)
        if not choices:
            best = beams.finished[: request.params.num_outputs]
            return [list(hypothesis.token_ids) for hypothesis in best]
        outputs = [[*outputs[choice.beam], choice.token_id] for choice in choices]


class FakeExecutor:
    """Executes steps on lists of integers in place of tensors."""

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.block_size = block_size
        self.device = [[-1] * block_size for _ in range(num_blocks)]
        self.host = [[-1] * block_size for _ in range(num_host_blocks)]
        self.fails: Callable[[], bool] = lambda: False  # asked for each move to or from the host

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out the moves in order; those that failed."""
        pools = {
            MoveKind.COPY: (self.device, self.device),
            MoveKind.SWAP_OUT: (self.device, self.host),
            MoveKind.SWAP_IN: (self.host, self.device),
        }
        failed = []
        for move in moves:
            source_pool, target_pool = pools[move.kind]
            if move.kind is not MoveKind.COPY and self.fails():
                failed.append(move)
                target_pool[move.target] = [-2] * self.block_size
            else:
                target_pool[move.target] = source_pool[move.source].copy()
        return failed

    def execute(self, step: Step) -> StepResult:
        result = StepResult({}, failed_moves=self.move(step.moves))
        for chunk in step.chunks:
            blocks = chunk.table.block_ids
            for position, token in enumerate(chunk.token_ids, chunk.start):
                previous = self._read(blocks, position - 1) if position else 0
                block, offset = divmod(position, self.block_size)
                self.device[blocks[block]][offset] = _key(previous, token)
        # All writes of a step come before its reads, as in a kernel that runs layer by layer.
        for chunk in step.chunks:
            length = chunk.start + len(chunk.token_ids)
            if chunk.num_candidates:
                keys = [self._read(chunk.table.block_ids, p) for p in range(length)]
                result.candidates[chunk.seq_id] = _candidates(keys, chunk.num_candidates)
            elif chunk.num_samples:
                keys = [self._read(chunk.table.block_ids, p) for p in range(length)]
                branches = range(chunk.num_samples) if chunk.num_samples > 1 else [chunk.branch]
                result.samples[chunk.seq_id] = [
                    Sample(_next_token(keys, chunk.request, branch)) for branch in branches
                ]
        return result

    def _read(self, blocks: Sequence[int], position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return self.device[blocks[block]][offset]
