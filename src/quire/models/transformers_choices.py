"""The experts that a mixture's routers choose, kept from one run of its code for another.

Two runs in 16 bits round differently, and where two experts are nearly as likely each may choose
another. Their logits then differ though both are right; so they are compared with one choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TOP = (torch.topk, Tensor.topk)


class Choices:
    """What ``topk`` gave in a run, call after call, for the rows of all its tokens."""

    def __init__(self) -> None:
        self._indices: list[Tensor] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what is chosen meanwhile."""
        with _Recording(self._indices):
            yield

    @contextmanager
    def made_again(self, rows: Tensor) -> Iterator[None]:
        """Let the same be chosen meanwhile, by a run over these of the tokens."""
        with _MadeAgain(self._indices, rows):
            yield


class _Recording(TorchFunctionMode):
    def __init__(self, indices: list[Tensor]) -> None:
        super().__init__()
        self._indices = indices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _TOP:
            self._indices.append(result.indices)
        return result


class _MadeAgain(TorchFunctionMode):
    def __init__(self, indices: list[Tensor], rows: Tensor) -> None:
        super().__init__()
        self._left = iter(indices)
        self._rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        before = next(self._left, None) if func in _TOP else None
        if before is None:
            return result
        numbers, own = args[0], result.indices
        width = own.numel() // len(self._rows)
        if not width or before.numel() % width or before.shape[-1] != own.shape[-1]:
            return result  # it chooses something else than experts of tokens
        indices = before.reshape(-1, width)[self._rows].reshape(own.shape)
        return torch.return_types.topk((numbers.gather(-1, indices), indices))
