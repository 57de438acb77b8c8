"""A model whose text depends on every byte of its KV cache, and on nothing else.

The key at a position is a hash of the token there and of the key before it, *read through the
block table*; the next token is a hash of all keys, read the same way. One block freed too early,
copied too late or shared wrongly, and the text changes.

It may have layers with sliding windows, one in each KV group: only the keys in the window and those
of the attention sinks are read.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.capabilities.beams import BeamSearch
from quire.core.memory import BlockMove, BlockTable, MoveKind
from quire.core.protocol import (
    Chunk,
    Opened,
    Outcome,
    PendingStep,
    Readout,
    Request,
    Roster,
    Sample,
    SoftCut,
    Step,
    StepResult,
    TokenLogprobs,
    column_biases,
    confirmed,
)
from support.tables import visible

VOCAB = 50
EOS = 0
WIDTH = 8  # of vectors


class Sight(NamedTuple):
    """What a token of a layer sees: its window, and the first tokens."""

    window: int | None = None
    sinks: int = 0

    def positions(self, position: int) -> list[int]:
        return list(visible(position, self.window, self.sinks))


Windows = Sequence[Sight]
"""What is seen in each layer."""

FULL: Windows = (Sight(),)
Keys = Sequence[Sequence[int]]
"""The keys that a token sees, by layer."""


def key_of(layer: int, sight: Sight, previous: int, token: int, biases: str = "") -> int:
    text = f"{layer},{0 if sight.window == 1 else previous},{token}{biases}"
    return zlib.crc32(text.encode())


def _biases(cuts: Sequence[SoftCut], position: int) -> str:
    """What a token's key owes to its sequence's cuts: those behind it, and how far behind."""
    behind = [cut for cut in cuts if cut.position <= position]
    return str(column_biases(behind, position)) if behind else ""


def _digest(keys: Keys) -> int:
    digest = 0
    for layer in keys:
        digest = zlib.crc32(array("q", layer).tobytes(), digest + 1)
    return digest


def _next_token(keys: Keys, request: Request, branch: int) -> int:
    return zlib.crc32(f"{request.seed},{branch}".encode(), _digest(keys)) % VOCAB


def fake_vector(keys: Keys) -> array[float]:
    """Of WIDTH numbers that depend on all keys."""
    digest = _digest(keys)
    return array("f", (zlib.crc32(bytes([n]), digest) / 2**32 for n in range(WIDTH)))


def fake_score(keys: Keys, token: int) -> TokenLogprobs:
    """Of a token after those whose keys are seen."""
    return TokenLogprobs(-zlib.crc32(token.to_bytes(4, "little"), _digest(keys)) / 2**30, 1, ())


def expected_scores(request: Request, windows: Windows) -> list[TokenLogprobs | None]:
    """Of a prompt's tokens."""
    history, scores = _History((), windows), list[TokenLogprobs | None]()
    for token in request.prompt_token_ids:
        scores.append(fake_score(history.seen(), token) if scores else None)
        history.append(token)
    return scores


def _candidates(keys: Keys, count: int) -> list[tuple[int, float]]:
    """The likeliest tokens: log-probabilities are hashes of all keys, none equal."""
    digest = _digest(keys)
    scores = [(t, -0.5 - zlib.crc32(bytes([t]), digest) / 2**30) for t in range(VOCAB)]
    return sorted(scores, key=lambda pair: -pair[1])[:count]


class _History:
    """The keys of a text that grows, by plain recursion."""

    def __init__(
        self, token_ids: Sequence[int], windows: Windows, cuts: Sequence[SoftCut] = ()
    ) -> None:
        self._windows = windows
        self._cuts = cuts
        self._keys: list[list[int]] = [[] for _ in windows]
        for token in token_ids:
            self.append(token)

    def append(self, token: int) -> None:
        for layer, (sight, keys) in enumerate(zip(self._windows, self._keys, strict=True)):
            biases = _biases(self._cuts, len(keys))
            keys.append(key_of(layer, sight, keys[-1] if keys else 0, token, biases))

    def seen(self) -> Keys:
        """The keys that the last token sees."""
        return [
            [keys[position] for position in sight.positions(len(keys) - 1)]
            for sight, keys in zip(self._windows, self._keys, strict=True)
        ]


def expected_outputs(request: Request, windows: Windows = FULL) -> list[list[int]]:
    """The request's outputs by plain recursion, no memory involved."""
    if request.params.use_beam_search:
        return _expected_beams(request, windows)
    return [_expected_output(request, branch, windows) for branch in range(request.params.n)]


def expected_turn(
    history: Sequence[int], request: Request, windows: Windows, cuts: Sequence[SoftCut] = ()
) -> list[int]:
    """What a session's turn generates after its history."""
    return _continue(history, request, 0, windows, cuts)


def _expected_output(request: Request, branch: int, windows: Windows) -> list[int]:
    return _continue(request.prompt_token_ids, request, branch, windows)


def _continue(
    prompt: Sequence[int],
    request: Request,
    branch: int,
    windows: Windows,
    cuts: Sequence[SoftCut] = (),
) -> list[int]:
    output: list[int] = []
    if request.max_tokens == 0:
        return output
    history = _History(prompt, windows, cuts)
    while True:
        output.append(_next_token(history.seen(), request, branch))
        if output[-1] in request.eos_token_ids or len(output) == request.max_tokens:
            return output
        history.append(output[-1])


def _expected_beams(request: Request, windows: Windows) -> list[list[int]]:
    beams, outputs = BeamSearch(request), [[]]
    while True:
        candidates = [
            _candidates(
                _History([*request.prompt_token_ids, *output], windows).seen(),
                beams.num_candidates,
            )
            for output in outputs
        ]
        choices = beams.advance(len(outputs[0]) + 1, candidates, outputs.__getitem__)
        if not choices:
            best = beams.finished[: request.params.num_outputs]
            return [list(hypothesis.token_ids) for hypothesis in best]
        outputs = [[*outputs[choice.beam], choice.token_id] for choice in choices]


class FakeLayer:
    """One layer's keys: blocks of integers, on the device and on the host."""

    def __init__(
        self, num_blocks: int, block_size: int, num_host_blocks: int, sight: Sight
    ) -> None:
        self.block_size = block_size
        self.sight = sight
        self.device = [[-1] * block_size for _ in range(num_blocks)]
        self.host = [[-1] * block_size for _ in range(num_host_blocks)]

    def move(self, move: BlockMove, fails: bool) -> bool:
        """Whether that failed."""
        source_pool, target_pool = {
            MoveKind.COPY: (self.device, self.device),
            MoveKind.SWAP_OUT: (self.device, self.host),
            MoveKind.SWAP_IN: (self.host, self.device),
        }[move.kind]
        target_pool[move.target] = [-2] * self.block_size
        if not fails:
            target_pool[move.target] = source_pool[move.source].copy()
        return fails

    def place(self, table: BlockTable, position: int) -> tuple[list[int], int]:
        """The block and the offset of a position."""
        block, offset = divmod(table.slot(position), self.block_size)
        return self.device[block], offset

    def read(self, table: BlockTable, position: int) -> int:
        block, offset = self.place(table, position)
        return block[offset]

    def seen(self, table: BlockTable, length: int) -> list[int]:
        """The keys that the last of ``length`` tokens sees."""
        return [self.read(table, position) for position in self.sight.positions(length - 1)]


class FakeExecutor:
    """Executes steps on lists of integers in place of tensors."""

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.layers = [FakeLayer(num_blocks, block_size, num_host_blocks, Sight())]
        self.fails: Callable[[], bool] = lambda: False  # asked for each move to or from the host
        self.roster = Roster()

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out the moves in order; those that failed."""
        failed = []
        for move in moves:
            fails = move.kind is not MoveKind.COPY and self.fails()
            if self.layers[move.kv_group].move(move, fails):
                failed.append(move)
        return failed

    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        result = self.execute(step)
        return PendingStep(step, lambda: result)

    def execute(self, step: Step) -> StepResult:
        return self.compute(step, self.roster.follow(step))

    def compute(self, step: Step, known: Sequence[Opened]) -> StepResult:
        """What a step comes to, ``known`` being whose its chunks are."""
        failed_moves = self.move(step.moves)
        for chunk in step.chunks:
            for number, (layer, table) in enumerate(self._layers(chunk)):
                for position, token in enumerate(chunk.token_ids, chunk.start):
                    previous = 0
                    if position and layer.sight.window != 1:
                        previous = layer.read(table, position - 1)
                    block, offset = layer.place(table, position)
                    biases = _biases(chunk.cuts, position)
                    block[offset] = key_of(number, layer.sight, previous, token, biases)
        # All writes of a step come before its reads, as in a kernel that runs layer by layer.
        outcomes: dict[int, Outcome] = {}
        for chunk, whose in zip(step.chunks, known, strict=True):
            length = chunk.start + len(chunk.token_ids)
            for position in range(chunk.start + 1, length):  # what the others of a chunk see
                for layer, table in self._layers(chunk):
                    assert -3 not in layer.seen(table, position), "what is read is there"
            if chunk.readout is not None:
                outcomes[chunk.seq_id] = self._read_out(whose, chunk, chunk.readout)
            if whose.request.params.prompt_logprobs is not None:
                outcome = outcomes.get(chunk.seq_id, Outcome())
                scores = self._scores(whose.request, chunk)
                outcomes[chunk.seq_id] = outcome._replace(prompt_logprobs=scores)
        return StepResult(outcomes, failed_moves)

    def _read_out(self, known: Opened, chunk: Chunk, readout: Readout) -> Outcome:
        length = chunk.start + len(chunk.token_ids)
        if readout.pool:
            return Outcome(vector=fake_vector(self._keys(chunk, length)))
        if not readout.rows:
            return Outcome()
        if readout.candidates:
            return Outcome(candidates=_candidates(self._keys(chunk, length), readout.candidates))
        assert known.seq_id == chunk.seq_id
        assert known.output_start == chunk.output_start
        lengths = range(length - readout.rows + 1, length + 1)
        first = 0 if readout.draws > 1 else known.branch
        tokens = [_next_token(self._keys(chunk, n), known.request, first) for n in lengths]
        last, others = self._keys(chunk, length), range(1, readout.draws)
        return Outcome(
            confirmed(list(map(Sample, tokens)), chunk.drafts),
            [Sample(_next_token(last, known.request, branch)) for branch in others],
        )

    def _scores(self, request: Request, chunk: Chunk) -> list[TokenLogprobs]:
        end = chunk.start + len(chunk.token_ids)
        following = request.prompt_token_ids[chunk.start + 1 : end + 1]
        return [
            fake_score(self._keys(chunk, length), token)
            for length, token in enumerate(following, chunk.start + 1)
        ]

    def _keys(self, chunk: Chunk, length: int) -> Keys:
        return [layer.seen(table, length) for layer, table in self._layers(chunk)]

    def poison(self, kv_group: int, blocks: Sequence[int]) -> None:
        """Overwrite device blocks that nobody may read any more."""
        layer = self.layers[kv_group]
        for block in blocks:
            layer.device[block] = [-3] * layer.block_size

    def _layers(self, chunk: Chunk) -> list[tuple[FakeLayer, BlockTable]]:
        return list(zip(self.layers, chunk.table.kv_groups, strict=True))
