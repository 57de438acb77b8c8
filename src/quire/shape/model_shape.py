"""Models by their shapes: what a token's keys and values take, and what computing one costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import ConfigError
from quire.shape.experts import ExpertShape

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
"""Bytes of a number, by dtype."""

_SCALE_BYTES = 4  # of each key and value of a head, where the cache's numbers have 8 bits


class CacheShape(NamedTuple):
    """What of a model decides how many blocks its texts need, and of which size."""

    windows: tuple[int | None, ...]  # by layer: the last tokens that one sees, itself included
    token_bytes: tuple[int, ...]  # by layer: keys and values of a token, as they are kept
    max_positions: int  # the longest text, in tokens
    depends_on_prompt_length: bool  # so blocks of one prompt must not be reused for another

    @property
    def bytes_per_token(self) -> int:
        return sum(self.token_bytes)

    def with_draft(self, draft: CacheShape) -> CacheShape:
        """With a draft model's layers behind those of the model whose texts these are."""
        return CacheShape(
            self.windows + draft.windows,
            self.token_bytes + draft.token_bytes,
            self.max_positions,
            self.depends_on_prompt_length or draft.depends_on_prompt_length,
        )


@dataclass(frozen=True)
class ModelShape:
    """A decoder's shape. All that memory and time depend on is derived from it."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    gated_mlp: bool = True  # three matrices (SwiGLU) rather than two
    tied_embeddings: bool = False
    learned_positions: bool = False
    biases: bool = False
    dtype: str = "float16"  # of weights, and of the KV cache if kv_dtype is None
    kv_dtype: str | None = None
    windows: tuple[int | None, ...] = ()  # by layer; none where all layers see everything
    experts: ExpertShape | None = None
    position_limit: int | None = None  # the longest text that may be asked for; None: no longer
    stable_positions: int | None = None  # rotations of longer texts are others; None: never
    stored_bytes: int | None = None  # of weights, where they are told; None: as ``dtype`` says
    projection_bytes: float | None = None  # of a weight in the layers; None: as the dtype has it

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, and their scales if they have 8 bits."""
        return self.num_layers * self._layer_kv_bytes

    @property
    def _layer_kv_bytes(self) -> int:
        size = BYTES[self.kv_dtype or self.dtype]
        return 2 * self.num_kv_heads * (self.head_size * size + (_SCALE_BYTES if size == 1 else 0))

    def cache(self, max_model_len: int | None = None) -> CacheShape:
        """Of texts of up to ``max_model_len`` tokens; None: as the model says.

        Raises:
            ConfigError: the model allows no such length.
        """
        limit = self.position_limit or self.max_positions
        longest = self.max_positions if max_model_len is None else max_model_len
        if not 1 <= longest <= limit:
            raise ConfigError(f"max_model_len is {longest}; this model allows 1 to {limit}")
        stable = self.stable_positions
        return CacheShape(
            windows=self.windows or (None,) * self.num_layers,
            token_bytes=(self._layer_kv_bytes,) * self.num_layers,
            max_positions=longest,
            depends_on_prompt_length=stable is not None and longest > stable,
        )

    @property
    def layer_params(self) -> int:
        """Parameters of one layer's matrices, norms and biases, but for those of experts."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        attention = hidden * (queries + 2 * keys) + queries * hidden
        mlp = self._mlp_params(inner)
        norms = 2 * hidden
        if self.biases:  # and layer norms have biases then
            norms *= 2
            attention += queries + 2 * keys + hidden
            mlp += inner + hidden
        return attention + mlp + norms

    @property
    def _layers_params(self) -> int:
        """Of all layers, but for those of experts."""
        total = self.num_layers * self.layer_params
        if self.experts is not None:  # which have a router and a shared MLP in place of their own
            router = self.experts.count * self.hidden_size
            instead = router + self._mlp_params(self.experts.shared_inner)
            total += self._mixtures * (instead - self._mlp_params(self.intermediate_size))
        return total

    @property
    def _mixtures(self) -> int:
        """Layers with experts."""
        return 0 if self.experts is None else sum(self.experts.layers)

    @property
    def _expert_params(self) -> int:
        """Of one expert of each layer that has them."""
        return 0 if self.experts is None else self._mixtures * self._mlp_params(self.experts.inner)

    @property
    def _all_expert_params(self) -> int:
        return 0 if self.experts is None else self.experts.count * self._expert_params

    def _mlp_params(self, inner: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * inner

    @property
    def num_params(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        positions = self.max_positions * self.hidden_size if self.learned_positions else 0
        return self._layers_params + self._all_expert_params + embeddings + positions

    @property
    def active_params(self) -> int:
        """Those that a token goes through."""
        return self.num_params - self._unread_params(1)

    @property
    def weight_bytes(self) -> int:
        if self.stored_bytes is not None:
            return self.stored_bytes
        layers = self._layers_params + self._all_expert_params
        return (self.num_params - layers) * BYTES[self.dtype] + round(layers * self._kept_bytes)

    @property
    def _kept_bytes(self) -> float:
        """Of a weight in the layers, as far as it is told."""
        if self.stored_bytes is not None:
            return self.stored_bytes / self.num_params
        return BYTES[self.dtype] if self.projection_bytes is None else self.projection_bytes

    def weight_bytes_read(self, num_tokens: int) -> float:
        """By a step: those of experts that nobody chooses are not."""
        return self.weight_bytes - self._unread_params(num_tokens) * self._kept_bytes

    def _unread_params(self, num_tokens: int) -> int:
        if self.experts is None:
            return 0
        unread = self.experts.count - self.experts.distinct(num_tokens)
        return round(unread * self._expert_params)

    @property
    def flops_per_token(self) -> int:
        """Of the layers' matrices: a multiplication and an addition for each parameter."""
        chosen = 0 if self.experts is None else self.experts.chosen
        return 2 * (self._layers_params + chosen * self._expert_params)

    @property
    def flops_per_sample(self) -> int:
        """Of the LM head."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def flops_per_pair(self) -> int:
        """Of attention, for a token and one that it sees: query times key, weight times value."""
        return 4 * self.num_layers * self.num_heads * self.head_size
