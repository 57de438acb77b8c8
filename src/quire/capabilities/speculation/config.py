"""The settings of speculative decoding, in the names that vLLM's ``--speculative-config`` has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError
from quire.core.settings import (
    QUANTIZATIONS,
    check_count,
    check_known,
    check_quantization,
    parse_bytes,
    setting,
)

METHODS = ("auto", "ngram", "suffix", "draft")
MOST_DRAFTS = 16
_SYNONYMS = {"draft_model": "draft"}
_NAME = "speculative_config"
_RANGES = (
    ("suffix_decoding_max_spec_factor", 0.1, 16),
    ("suffix_decoding_min_token_prob", 0, 1),
)
# vLLM's, which could mean nothing here.
_OPTIONS_OF = {"prompt_lookup_": ("ngram",), "suffix_decoding_": ("suffix", "auto")}
_REFUSED = {
    "suffix_decoding_max_tree_depth": "there is no tree: the last 64 tokens are compared at most, "
    "and num_speculative_tokens says how far drafts go",
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who guesses tokens, and at most how many of them in one step for one sequence."""

    method: str = setting(
        "auto",
        "who guesses: ngram, the request's own text; suffix, that and outputs served before; "
        "draft, a smaller model; auto, all of these that there are",
    )
    model: str | None = setting(
        None, "directory or Hugging Face name of a smaller model with the same vocabulary"
    )
    revision: str | None = setting(None, "branch, tag or commit of that model")
    quantization: str | None = setting(
        None, f"round that model's weights: {', '.join(QUANTIZATIONS)}"
    )
    num_speculative_tokens: int = setting(
        MOST_DRAFTS, f"most drafts of a sequence in one step, 1 to {MOST_DRAFTS}"
    )
    prompt_lookup_max: int = setting(5, "ngram: most last tokens that are looked for")
    prompt_lookup_min: int = setting(2, "ngram: fewest")
    suffix_decoding_max_spec_factor: float = setting(
        2.0, "suffix: drafts for each token of the match that they follow, 0.1 to 16"
    )
    suffix_decoding_min_token_prob: float = setting(
        0.1, "suffix: no more drafts once the chance that all are right is below, 0 to 1"
    )
    suffix_decoding_max_cached_requests: int = setting(
        10_000, "suffix: outputs served before that are looked in, the latest; 0: none"
    )
    suffix_decoding_cache_bytes: int | str = setting(
        "64MiB", "suffix: memory for outputs served before, 1MiB to 64GiB; 0: none"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", _SYNONYMS.get(str(self.method), self.method))
        if self.method not in METHODS:
            raise ConfigError(
                f"{_NAME}: method must be one of {', '.join(METHODS)}; got {self.method!r}"
            )
        _check("num_speculative_tokens", self.num_speculative_tokens, 1, MOST_DRAFTS)
        _check("prompt_lookup_max", self.prompt_lookup_max, 1, 64)
        _check("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        self._check_suffix()
        self._check_model()

    def _check_model(self) -> None:
        if not isinstance(self.model, str | None) or self.model == "":
            raise ConfigError(f"{_NAME}: model must be a name or a directory, got {self.model!r}")
        if not isinstance(self.revision, str | None):
            raise ConfigError(f"{_NAME}: revision must be a name, got {self.revision!r}")
        check_quantization(f"{_NAME}: quantization", self.quantization)
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

    def _check_suffix(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and low <= value <= high):
                raise ConfigError(
                    f"{_NAME}: {name} must be from {low:g} to {high:g}, got {value!r}"
                )
        _check("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0)
        if self.cache_bytes and not 2**20 <= self.cache_bytes <= 2**36:
            raise ConfigError(
                f"{_NAME}: suffix_decoding_cache_bytes must be 0, or from 1MiB to 64GiB, "
                f"got {self.suffix_decoding_cache_bytes!r}"
            )

    @property
    def cache_bytes(self) -> int:
        """For outputs served before."""
        try:
            return parse_bytes(self.suffix_decoding_cache_bytes)
        except ConfigError as error:
            raise ConfigError(f"{_NAME}: suffix_decoding_cache_bytes: {error}") from None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpeculativeConfig:
        """ConfigError where an option is unknown or out of its range."""
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


def _check(name: str, value: object, low: int, high: int = 2**31) -> None:
    if value is None:
        raise ConfigError(f"{_NAME}: {name} must be an integer from {low} to {high}")
    check_count(f"{_NAME}: {name}", value, low, high)
