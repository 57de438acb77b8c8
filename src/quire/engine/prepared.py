"""What is ready to run: checked by name, and texts made tokens of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.protocol import PoolingParams, Request, SamplingParams
from quire.text.stop_strings import StopAutomaton


@dataclass(frozen=True)
class PreparedParams:
    """SamplingParams that this model can serve, and what their texts come to."""

    params: SamplingParams
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    stops: StopAutomaton | None = None
    rules: object = None
    prediction: tuple[int, ...] = ()
    pooling: PoolingParams | None = None  # all of it filled in

    @property
    def max_tokens(self) -> int | None:
        """See ``SamplingParams``; 0: only the prompt counts."""
        return self.params.max_tokens if self.pooling is None else 0

    @property
    def least_output(self) -> int:
        """Tokens for which there must be room after a prompt."""
        return 0 if self.max_tokens == 0 else 1


@dataclass(frozen=True)
class PreparedRequest:
    """A Request and the text it was made from, if it was.

    context: the tokens that its output goes on from, or the last of them.
    stops: its stop strings, for all of its outputs; None without any.
    """

    request: Request
    prompt: str | None
    context: Sequence[int]
    stops: StopAutomaton | None
