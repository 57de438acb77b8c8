"""The settings of speculative decoding, in the names that vLLM's ``--speculative-config`` has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError
from quire.settings import (
    QUANTIZATIONS,
    check_count,
    check_known,
    check_quantization,
    check_settings,
    parse_bytes,
    setting,
)

METHODS = ("auto", "ngram", "suffix", "draft")
MOST_DRAFTS = 16
_SYNONYMS = {"draft_model": "draft"}
_NAME = "speculative_config"
# Options of vLLM's that only some methods have.
_OPTIONS_OF = {"prompt_lookup_": ("ngram",), "suffix_decoding_": ("suffix", "auto")}
_REFUSED = {
    "suffix_decoding_max_tree_depth": "there is no tree: the last 64 tokens are compared at most, "
    "and num_speculative_tokens says how far drafts go",
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """What drafts tokens, and at most how many per step and sequence."""

    method: str = setting(
        "auto",
        "what drafts: ngram, the request's own text; suffix, that and earlier outputs; draft, a "
        "smaller model; auto, all of these that there are",
        choices=METHODS,
    )
    model: str | None = setting(
        None,
        "directory or Hugging Face name of a smaller model with the same vocabulary",
        value="MODEL",
    )
    revision: str | None = setting(None, "branch, tag or commit of that model", value="REVISION")
    quantization: str | None = setting(None, "round that model's weights", choices=QUANTIZATIONS)
    num_speculative_tokens: int = setting(
        MOST_DRAFTS,
        "most draft tokens of a sequence in one step",
        low=1,
        high=MOST_DRAFTS,
        unit="tokens",
    )
    prompt_lookup_max: int = setting(
        5, "ngram: most last tokens that are looked up", low=1, high=64, unit="tokens"
    )
    prompt_lookup_min: int = setting(
        2, "ngram: fewest last tokens that are looked up", low=1, high=64, unit="tokens"
    )
    suffix_decoding_max_spec_factor: float = setting(
        2.0, "suffix: draft tokens per token of the match that they follow", low=0.1, high=16
    )
    suffix_decoding_min_token_prob: float = setting(
        0.1,
        "suffix: draft no further once the chance that all drafts are right is below this",
        low=0,
        high=1,
        value="PROBABILITY",
    )
    suffix_decoding_max_cached_requests: int = setting(
        10_000,
        "suffix: earlier outputs that are searched, the latest; 0: none",
        low=0,
        high=2**31,
        value="N",
    )
    suffix_decoding_cache_bytes: int | str = setting(
        "64MiB", "suffix: memory for earlier outputs, 1MiB to 64GiB; 0: none", unit="bytes"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", _SYNONYMS.get(str(self.method), self.method))
        check_quantization(f"{_NAME}: quantization", self.quantization)  # its error says more
        check_settings(self, f"{_NAME}: ")
        name = f"{_NAME}: prompt_lookup_min"
        check_count(name, self.prompt_lookup_min, 1, self.prompt_lookup_max)
        if self.cache_bytes and not 2**20 <= self.cache_bytes <= 2**36:
            raise ConfigError(
                f"{_NAME}: suffix_decoding_cache_bytes must be 0, or from 1MiB to 64GiB, "
                f"got {self.suffix_decoding_cache_bytes!r}"
            )
        self._check_model()

    def _check_model(self) -> None:
        if self.model == "":
            raise ConfigError(f"{_NAME}: model must be a name or a directory, got an empty text")
        if self.method not in ("draft", "auto"):
            for name in ("model", "revision", "quantization"):
                if getattr(self, name) is not None:
                    raise ConfigError(f'{_NAME}: {name} does nothing with method "{self.method}"')
        if self.model is None:
            for name in ("revision", "quantization"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{_NAME}: {name} needs a model")

    @property
    def has_draft_model(self) -> bool:
        """Whether a smaller model guesses."""
        return self.method == "draft" or self.model is not None

    @property
    def cache_bytes(self) -> int:
        """Memory for earlier outputs."""
        return parse_bytes(self.suffix_decoding_cache_bytes)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpeculativeConfig:
        """The settings that ``options`` give. ConfigError: one is unknown or out of its range."""
        for name in options:
            if name in _REFUSED:
                raise ConfigError(f"{_NAME}: {name} is not supported: {_REFUSED[name]}")
        check_known(cls, options, f"{_NAME}: ")
        asked = cls(**options)
        for beginning, methods in _OPTIONS_OF.items():
            for name in options:
                if name.startswith(beginning) and asked.method not in methods:
                    raise ConfigError(f'{_NAME}: {name} does nothing with method "{asked.method}"')
        return asked
