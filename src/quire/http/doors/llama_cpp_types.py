"""The body of llama.cpp's POST /completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from quire.core.errors import RequestError, shown
from quire.core.protocol import StructuredOutputs
from quire.http.doors.llama_options import LlamaOptions
from quire.http.fields.strict import Ids, Texts, between, biases, expecting
from quire.http.openai.messages import JsonObject

_MOST_PROMPTS = 2048


class LlamaCppRequest(LlamaOptions):
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **LlamaOptions.neutral,
        "dry_multiplier": (0,),
        "dynatemp_range": (0,),
        "lora": ([],),
        "min_keep": (0,),
        "n_cmpl": (1,),
        "n_indent": (0,),
        "post_sampling_probs": (False,),
        "return_progress": (False,),
        "t_max_predict_ms": (0,),
        "timings_per_token": (False,),
        "top_n_sigma": (-1,),
        "xtc_probability": (0,),
    }
    idle = LlamaOptions.idle | {
        "cache_prompt", "dry_allowed_length", "dry_base", "dry_penalty_last_n",
        "dry_sequence_breakers", "dynatemp_exponent", "id_slot", "n_cache_reuse", "n_discard",
        "n_keep", "xtc_threshold",
    }  # fmt: skip

    model: str | None = None
    prompt: Annotated[
        str | Texts | Ids | Annotated[list[str | Ids], Field(fail_fast=True)],
        expecting("a string, a list of token ids, or a list of such prompts"),
    ]
    n_predict: int | None = None
    stream: bool = False
    ignore_eos: bool = False
    logit_bias: (
        Annotated[dict[str, Any] | list[Any], expecting("pairs of token id and bias")] | None
    ) = None
    json_schema: JsonObject | None = None
    grammar: str | None = None
    n_probs: int = 0
    return_tokens: bool = False
    sse_ping_interval: Annotated[int, between(-1, 86_400)] | None = None

    @model_validator(mode="after")
    def _check(self) -> LlamaCppRequest:
        if not self.prompt:
            raise RequestError("prompt must not be empty", "prompt")
        if len(self.prompts) > _MOST_PROMPTS:
            raise RequestError(f"a request may hold at most {_MOST_PROMPTS:,} prompts", "prompt")
        return self

    def silence(self, usual: float) -> float:
        """Seconds without a token after which a stream gives a sign of life; -1 is never."""
        asked = self.sse_ping_interval
        return usual if asked is None else max(asked, 0)

    @property
    def structure_field(self) -> str:
        return "json_schema" if self.json_schema is not None else "grammar"

    @property
    def structure(self) -> StructuredOutputs | None:
        if self.json_schema is not None and self.grammar:
            raise RequestError("grammar and json_schema exclude each other", "grammar")
        if self.json_schema is not None:
            return StructuredOutputs(json=self.json_schema)
        return StructuredOutputs(grammar=self.grammar) if self.grammar else None

    @property
    def several(self) -> bool:
        """Whether the prompt is a list of them, whose answer is a list too."""
        return not isinstance(self.prompt, str) and not isinstance(self.prompt[0], int)

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        return list(prompt) if self.several else [prompt]

    @property
    def biases(self) -> dict[int, float] | None:
        """``logit_bias``, which is an object as OpenAI's, or pairs; a bias of false forbids."""
        pairs: Any = self.logit_bias or ()
        if isinstance(pairs, dict):
            pairs = pairs.items()
        given = {}
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                message = f"logit_bias must hold pairs of token id and bias, got {shown(pair)}"
                raise RequestError(message, "logit_bias")
            token, bias = pair
            given[str(token)] = -100.0 if bias is False else bias
        return biases(given) or None
