"""The bodies of requests under /v1/sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from quire.core.errors import RequestError
from quire.core.protocol import SamplingParams
from quire.http.fields.strict import Ids, Name, Strict, between, expecting
from quire.http.openai.requests import GenerationRequest


class OpenRequest(Strict):
    """The body of POST /v1/sessions."""

    model: str | None = None
    cache_salt: Name | None = None
    user: Name | None = None  # whose share it counts against, where there are not several keys
    # Tokens that it goes on with, beside sinks and input, when a turn finds its ring full.
    recompute_last_n: Annotated[int, between(1, 2**31 - 1)] | None = None


class AppendRequest(Strict):
    """The body of POST /v1/sessions/{id}/append."""

    input: Annotated[str | Ids, expecting("a string or a list of token ids")]


class SoftCutRequest(Strict):
    """The body of POST /v1/sessions/{id}/soft_cut."""

    # JSON has no infinity.
    bias: Annotated[float | Literal["-inf"], expecting('a number that is at most 0, or "-inf"')]
    fade: int = 0  # tokens


class RecomputeRequest(Strict):
    """The body of POST /v1/sessions/{id}/recompute."""

    last_n: Annotated[int, between(1, 2**31 - 1)]


class TurnRequest(GenerationRequest):
    """The body of POST /v1/sessions/{id}/generate: the fields of a completion without a prompt."""

    echo: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_turn(self) -> TurnRequest:
        if self.cache_salt is not None:
            raise RequestError("cache_salt is a session's, given when it is opened", "cache_salt")
        if self.kv_transfer_params:
            raise RequestError("a session's blocks stay where it is", "kv_transfer_params")
        return self

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        return self._sampling_params(defaults)
