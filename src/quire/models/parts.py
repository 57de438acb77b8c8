"""Parts of stored tensors: what a rank needs of them, and so all that it reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ALL = slice(None)
Rows = slice | Tensor


class TensorPart(NamedTuple):
    """A part of a tensor's first dimension, and of its second if it has one.

    A weight's rows are its outputs, its columns its inputs. A tensor of numbers chooses in its
    order.
    """

    rows: Rows = ALL
    columns: Rows = ALL
    which: int | None = None  # of a tensor that is many of one shape
    turned: bool = False  # it is stored with its columns first

    @property
    def is_whole(self) -> bool:
        return self.rows is ALL and self.columns is ALL and self.which is None

    def of(self, tensor: Tensor) -> Tensor:
        """A view, where no order is chosen."""
        tensor = tensor if self.which is None else tensor[self.which]
        tensor = tensor.T if self.turned else tensor
        tensor = tensor if self.rows is ALL else tensor[self.rows]
        return tensor if self.columns is ALL else tensor[:, self.columns]


WHOLE = TensorPart()


def as_rows(numbers: Tensor) -> Rows:
    """A slice, if one chooses the same."""
    first, count = int(numbers[0]), len(numbers)
    if torch.equal(numbers, torch.arange(first, first + count)):
        return slice(first, first + count)
    return numbers


def numbers_of(chosen: Rows, count: int) -> Tensor:
    """[n] int64, what is chosen of ``count``."""
    return chosen if isinstance(chosen, Tensor) else torch.arange(count)[chosen]


def count_of(chosen: Rows, count: int) -> int:
    """How many."""
    return len(chosen) if isinstance(chosen, Tensor) else len(range(count)[chosen])


def bounds(columns: slice, count: int) -> tuple[int, int]:
    """The first index of ``count``, and the one after the last."""
    chosen = range(count)[columns]
    return chosen.start, chosen.stop


def outward(columns: slice, unit: int, count: int) -> slice:
    """The smallest part of whole units with ``columns`` of ``count`` in it."""
    if columns is ALL:
        return ALL
    return slice(columns.start // unit * unit, min(-(-columns.stop // unit) * unit, count))


def within(outer: slice, columns: slice) -> slice:
    """The position of ``columns`` in ``outer``, which contains them."""
    if outer is ALL or columns is ALL:
        return columns
    return slice(columns.start - outer.start, columns.stop - outer.start)
