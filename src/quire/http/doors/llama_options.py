"""The sampling options that Ollama and llama.cpp have in common, which are llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import GetJsonSchemaHandler, model_validator

from quire.core.errors import RequestError
from quire.core.protocol import SamplingParams
from quire.http.fields.others import as_patterns
from quire.http.fields.strict import Strict, Texts, between, expecting

_ANY_SEED = (-1, 2**32 - 1)
_OURS = {  # the names in SamplingParams
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


class LlamaOptions(Strict):
    """Options as llama.cpp names them; many clients send all of them, at their defaults."""

    # Options that Quire does not have, with the values under which they change nothing.
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "mirostat": (0,),
        "tfs_z": (1,),
        "typical_p": (1,),
    }
    # What changes no text: how the machine is used, or what belongs to a neutral option.
    idle: ClassVar[frozenset[str]] = frozenset({"mirostat_tau", "mirostat_eta"})

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[str | Texts, expecting("a string or a list of strings")] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Annotated[int, between(-1, 2**31 - 1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_idle(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if name not in cls.idle and value not in cls.neutral.get(name, ())
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        schema = handler.resolve_ref_schema(handler(core))
        neutral = {name: {"enum": [*values, None]} for name, values in cls.neutral.items()}
        idle: dict[str, Any] = {name: {} for name in cls.idle}
        schema["patternProperties"] = as_patterns({**neutral, **idle})
        return schema

    @model_validator(mode="after")
    def _check_penalties(self) -> LlamaOptions:
        """Ours are of the whole text, theirs of its last ``repeat_last_n`` tokens; -1 is all."""
        repeats = self.repeat_penalty not in (None, 1.0)
        if self.repeat_last_n in (None, -1):
            return self
        if repeats or self.presence_penalty or self.frequency_penalty:
            raise RequestError(
                "repeat_last_n must be -1 beside a penalty: penalties are of the whole text, got "
                f"{self.repeat_last_n}",
                "repeat_last_n",
            )
        return self

    def sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int | None, **others: Any
    ) -> SamplingParams:
        """``max_tokens``: -1, -2 and None mean as many as there is room for."""
        params = {name: getattr(self, theirs) for theirs, name in _OURS.items()}
        params["seed"] = None if self.seed in _ANY_SEED else self.seed
        params["stop"] = self.stop or None
        given = {name: value for name, value in params.items() if value is not None}
        most = None if max_tokens in (-1, -2) else max_tokens
        return SamplingParams.over(defaults, {**given, "max_tokens": most, **others})
