"""How far a form's distributions of next tokens are from the model's own.

The measures are those of llama.cpp's ``llama-perplexity --kl-divergence``, so that figures can be
laid beside its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Loss(NamedTuple):
    """Over all tokens of a text that have one before them.

    divergence: Kullback-Leibler, of the form's distributions from the model's own, in nats.
    same_token: share of places where the likeliest token is the model's own.
    """

    predictions: int
    perplexity: float
    own_perplexity: float
    divergence: float
    divergence_999: float  # at the worst thousandth
    most_divergence: float
    same_token: float

    @property
    def more_perplexity(self) -> float:
        """As a share of the model's own."""
        return self.perplexity / self.own_perplexity - 1


class Reference:
    """The model's own distributions, kept in a file while forms are compared with them."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        """rows: token ids, of which each but a row's first is predicted."""
        self.rows = rows
        self.predictions = sum(len(row) - 1 for row in rows)
        self._file = tempfile.TemporaryDirectory(prefix="quire-evaluate-")
        self._table: np.memmap[tuple[int, int], np.dtype[np.float32]] | None = None

    def close(self) -> None:
        """Give the file's room back."""
        self._table = None
        self._file.cleanup()

    def keep(self, logits: Iterable[Tensor]) -> None:
        """Take the model's own logits [n, V], over the rows without their last tokens."""
        start = 0
        for part in logits:
            if self._table is None:
                path = Path(self._file.name) / "logprobs"
                shape = self.predictions, part.shape[1]
                self._table = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
            self._table[start : start + len(part)] = part.log_softmax(-1).numpy()
            start += len(part)

    def compare(self, logits: Iterable[Tensor]) -> Loss:
        """A form's logits, over the same tokens as ``keep``."""
        assert self._table is not None
        successors = torch.tensor([token for row in self.rows for token in row[1:]])
        found, start = list[Tensor](), 0
        for part in logits:
            end = start + len(part)
            own, mine = torch.from_numpy(self._table[start:end]), part.log_softmax(-1)
            token_ids = successors[start:end, None]
            terms = own.exp() * (own - mine)
            terms = terms.nan_to_num(0.0, posinf=math.inf)  # 0 * inf: the model excludes the token
            columns = (
                -mine.gather(1, token_ids)[:, 0],
                -own.gather(1, token_ids)[:, 0],
                terms.sum(1).clamp(min=0),
                (own.argmax(1) == mine.argmax(1)).float(),
            )
            found.append(torch.stack(columns, 1).double())
            start = end
        nats, own_nats, divergences, same = torch.cat(found).T
        return Loss(
            self.predictions,
            math.exp(nats.mean()),
            math.exp(own_nats.mean()),
            float(divergences.mean()),
            float(divergences.quantile(0.999)),
            float(divergences.max()),
            float(same.mean()),
        )
