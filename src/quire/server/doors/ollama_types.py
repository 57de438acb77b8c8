"""The bodies of Ollama's API. Options about the machine pass; what would be ignored is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from quire.errors import RequestError
from quire.server.doors.llama_options import LlamaOptions
from quire.server.fields import Ids, Strict, Texts, between, expecting

Format = Annotated[Literal["", "json"] | dict[str, Any], expecting('"json" or a JSON schema')]
KeepAlive = Annotated[int | float | str, expecting("a duration")]
Think = Annotated[
    bool | Literal["low", "medium", "high"], expecting('true, false, "low", "medium" or "high"')
]


class Options(LlamaOptions):
    idle = LlamaOptions.idle | {
        "embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu",
        "num_keep", "num_thread", "numa", "penalize_newline", "use_mlock", "use_mmap", "vocab_only",
    }  # fmt: skip

    num_predict: int | None = None
    num_ctx: Annotated[int, between(1, 2**31 - 1)] | None = None

    def check_context(self, max_model_len: int | None) -> None:
        """RequestError if more is asked for than there is; texts are never cut to fit."""
        if self.num_ctx is not None and self.num_ctx > (max_model_len or self.num_ctx):
            raise RequestError(
                f"num_ctx must be at most max_model_len, {max_model_len}, got {self.num_ctx}",
                "num_ctx",
            )


class OllamaRequest(Strict):
    """What requests for text have in common."""

    model: str
    stream: bool = True
    format: Format | None = None
    options: Options = Options()
    keep_alive: KeepAlive | None = None
    think: Think | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    @model_validator(mode="after")
    def _check_logprobs(self) -> OllamaRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self


class GenerateRequest(OllamaRequest):
    """The body of POST /api/generate."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    context: Ids | None = None
    images: Texts | None = None

    @model_validator(mode="after")
    def _refuse(self) -> GenerateRequest:
        for name in ("suffix", "template", "context", "images"):
            if getattr(self, name):
                raise RequestError(f"{name} is not supported by Quire; leave it out", name)
        if self.raw and self.system:
            raise RequestError("system is no part of a raw prompt; leave one of them out", "system")
        return self


class ShowRequest(Strict):
    """The body of POST /api/show; ``name`` is what ``model`` was called once."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False
