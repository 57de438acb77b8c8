"""What a step takes, learnt from those that were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.protocol import Step

_FADING = 0.97  # what a step counts for when another of its kind has come
_LEAST_STEPS = 8
_SHORTEST = 1e-4  # seconds: errors of shorter steps count as those of such
_RIDGE = 1e-9


class StepWork(NamedTuple):
    """What a step computes.

    attended: by each of its tokens, how many thousand it sees.
    """

    whole: float
    sequences: float
    tokens: float
    attended: float

    @classmethod
    def of(cls, step: Step) -> StepWork:
        """The work of a step."""
        attended = 0.0
        for chunk in step.chunks:
            count = len(chunk.token_ids)
            attended += count * (chunk.start + 0.5 * count)
        return cls(1.0, len(step.chunks), step.num_tokens, attended / 1000)


class StepTimes:
    """Seconds of a step: a sum of its parts, each times a factor that is not negative.

    The factors are those of the least squares of relative errors, in which older steps fade: those
    with parts of prompts as others of their kind come, which are few, and the others likewise.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._decoding, self._reading = _Moments(), _Moments()
        self._factors: Sequence[float] | None = None  # None: to be found

    @property
    def is_known(self) -> bool:
        """Whether enough was seen to say anything."""
        return self.num_steps >= _LEAST_STEPS

    def learn(self, work: StepWork, seconds: float) -> None:
        """Take in how long a step has taken."""
        kind = self._reading if work.tokens > work.sequences else self._decoding
        kind.learn(work, seconds)
        self.num_steps += 1
        self._factors = None

    def seconds(self, work: StepWork) -> float:
        """Seconds that a step is expected to take."""
        if self._factors is None:
            self._factors = self._found()
        return sum(factor * x for factor, x in zip(self._factors, work, strict=True))

    def _found(self) -> list[float]:
        """The factors. Those that would be negative are 0, the worst first."""
        moments = [
            [one + other for one, other in zip(*rows, strict=True)]
            for rows in zip(self._decoding.products, self._reading.products, strict=True)
        ]
        sums = [a + b for a, b in zip(self._decoding.sums, self._reading.sums, strict=True)]
        used = [n for n in range(len(sums)) if moments[n][n] > 0]
        while used:
            solved = _solved([[moments[a][b] for b in used] for a in used],
                             [sums[a] for a in used])  # fmt: skip
            worst = min(range(len(used)), key=lambda n: solved[n] * moments[used[n]][used[n]])
            if solved[worst] >= 0:
                factors = dict(zip(used, solved, strict=True))
                return [factors.get(n, 0.0) for n in range(len(sums))]
            del used[worst]
        return [0.0] * len(sums)


class _Moments:
    """Sums over steps of one kind, weighted by the squares of what they took."""

    def __init__(self) -> None:
        self.products = [[0.0] * len(StepWork._fields) for _ in StepWork._fields]
        self.sums = [0.0] * len(StepWork._fields)

    def learn(self, work: StepWork, seconds: float) -> None:
        weight = 1 / max(seconds, _SHORTEST) ** 2
        for row, x in enumerate(work):
            weighted, products = weight * x, self.products[row]
            for column, y in enumerate(work):
                products[column] = products[column] * _FADING + weighted * y
            self.sums[row] = self.sums[row] * _FADING + weighted * seconds


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a small positive system, by elimination; a little ridge makes it one."""
    size = len(right)
    for n in range(size):
        matrix[n][n] *= 1 + _RIDGE
    for n in range(size):
        for row in range(n + 1, size):
            factor = matrix[row][n] / matrix[n][n] if matrix[n][n] else 0.0
            for column in range(n, size):
                matrix[row][column] -= factor * matrix[n][column]
            right[row] -= factor * right[n]
    found = [0.0] * size
    for n in reversed(range(size)):
        rest = right[n] - sum(matrix[n][m] * found[m] for m in range(n + 1, size))
        found[n] = rest / matrix[n][n] if matrix[n][n] > 0 else 0.0
    return found
