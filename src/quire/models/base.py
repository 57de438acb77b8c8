"""The interface of a model for the executor, whichever code computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.kernels.layer_memory import KVShape, StateShape
from quire.kernels.ops import AttentionBatch, Kernels, Texts


class ExpertFacts(NamedTuple):
    """Facts about a model's mixtures, all layers together."""

    num: int  # of a layer
    chosen: int  # by a token
    weight_bytes: int  # of all experts


class Model(Protocol):
    """A decoder whose attention runs over block tables.

    Shapes use T, the new tokens of a step over all its sequences, and d, the width of ``hidden``.
    """

    vocab_size: int  # columns of the logits
    has_head: bool  # false: its states are wanted, and its logits mean nothing
    windows: tuple[int | None, ...]  # by layer: the last tokens that one sees, itself included
    max_positions: int  # the longest sequence, prompt and output, in tokens
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype  # of the hidden states, keys and values
    weight_bytes: int
    token_bytes: int  # of them, those that a step of one token reads
    experts: ExpertFacts | None  # None: every token reads all weights, as far as is known
    # True where a key depends on more than the tokens before it, so that blocks of one prompt must
    # not be reused for another: rotations that stretch with the length of the sequence.
    kv_depends_on_prompt_length: bool
    # True where ``forward`` launches the same for every batch of equal sizes and asks the device
    # for nothing, so that its launches can be recorded once and replayed.
    replayable: bool

    @property
    def vector_width(self) -> int | None:
        """Of the vectors that may be given in the place of tokens', as transformers takes them for
        ``inputs_embeds``; None: of tokens only.
        """
        ...

    @property
    def kv_shapes(self) -> Sequence[KVShape | StateShape]:
        """What each layer keeps: of every token, or one state of each sequence."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[Any],
        kernels: Kernels,
    ) -> Tensor:
        """token_ids [T] int64 -> hidden [T, d], after the final norm; writes ``kv``.

        kv: by layer, a ``LayerKV`` or a ``LayerState``.
        """
        ...

    def go_on(
        self, texts: Texts, kv: Sequence[Any], kernels: Kernels, vocab_size: int
    ) -> Tensor | None:
        """Several passes in one call, each with the likeliest of the first ``vocab_size`` tokens of
        the one before; see ``Kernels.go_on``. None: not possible here.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, d], of the rows that are sampled -> [R, vocab_size] float32."""
        ...


def checked_max_positions(requested: int | None, default: int, limit: int) -> int:
    """The longest sequence to serve: ``requested``, or ``default``; never above ``limit``.

    Raises:
        ConfigError: ``requested`` is not in 1..limit.
    """
    if requested is None:
        return default
    if not 1 <= requested <= limit:
        raise ConfigError(f"max_model_len is {requested}; this model allows 1 to {limit}")
    return requested
