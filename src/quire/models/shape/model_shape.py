"""Models by their shapes: what a token's keys and values take, and what computing one costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.models.shape.experts import ExpertShape
from quire.models.shape.forms import WeightForm, plain_form
from quire.models.shape.latent import LatentShape
from quire.models.shape.recurrence import RecurrenceShape

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
"""Bytes of a number, by dtype."""

_SCALE_BYTES = 4  # of each key and value of a head, where the cache's numbers have 8 bits or 4


class CacheShape(NamedTuple):
    """The facts of a model that decide how many blocks texts need, and of which size."""

    windows: tuple[int | None, ...]  # by layer: the last tokens that one sees, itself included
    token_bytes: tuple[int, ...]  # by layer: keys and values of a token, as they are kept
    max_positions: int  # the longest text, in tokens
    depends_on_prompt_length: bool  # so blocks of one prompt must not be reused for another
    state_bytes: tuple[int, ...] = ()  # by layer: a sequence's state; 0 or nothing: it has none

    @property
    def bytes_per_token(self) -> int:
        return sum(self.token_bytes)

    @property
    def states(self) -> tuple[int, ...]:
        """``state_bytes`` of every layer."""
        return self.state_bytes or (0,) * len(self.windows)

    def with_draft(self, draft: CacheShape) -> CacheShape:
        """The shape with a draft model's layers after those of the model."""
        return CacheShape(
            self.windows + draft.windows,
            self.token_bytes + draft.token_bytes,
            self.max_positions,
            self.depends_on_prompt_length or draft.depends_on_prompt_length,
            self.states + draft.states if any(self.states + draft.states) else (),
        )


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has none."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


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
    state_bytes: tuple[int, ...] = ()  # by layer: its state; 0: it has keys and values instead
    recurrence: RecurrenceShape | None = None  # of layers with a state
    gated_attention: bool = False  # as many queries again are gates of what attention gives
    experts: ExpertShape | None = None
    position_limit: int | None = None  # the longest text that may be asked for; None: no longer
    stable_positions: int | None = None  # rotations of longer texts are others; None: never
    stored_bytes: int | None = None  # of weights, where they are told; None: as ``form`` says
    latent: LatentShape | None = None  # of keys and values; None: each head has its own
    form: WeightForm | None = None  # of weights; None: as ``dtype`` says
    planned_only: bool = False  # Quire has no code of its own for it
    notes: tuple[str, ...] = ()  # what of its config is taken how, and who serves it

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> ModelShape:
        """The shape from what ``asdict`` and JSON make of one; TypeError: it is not one."""
        parts = {
            "experts": ExpertShape,
            "latent": LatentShape,
            "form": WeightForm,
            "recurrence": RecurrenceShape,
        }
        made: dict[str, Any] = {
            name: parts[name](**_tuples(value)) if name in parts and value is not None else value
            for name, value in values.items()
        }
        return cls(**_tuples(made))

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, and their scales if they have 8 bits or 4."""
        return sum(self._token_bytes)

    @property
    def _token_bytes(self) -> tuple[int, ...]:
        """Keys and values of a token, by layer."""
        states = self.state_bytes or (0,) * self.num_layers
        return tuple(0 if state else self._layer_kv_bytes for state in states)

    @property
    def _layer_kv_bytes(self) -> int:
        size = 0.5 if self.kv_dtype == "int4" else BYTES[self.kv_dtype or self.dtype]
        scale = _SCALE_BYTES if size <= 1 else 0
        if self.latent is not None:
            return int(self.latent.width * size) + scale
        return 2 * self.num_kv_heads * (int(self.head_size * size) + scale)

    def kv_copies(self, machines: int) -> int:
        """Copies of each key and value in a tensor-parallel group: too few heads are copied."""
        heads = 1 if self.latent is not None else self.num_kv_heads
        return max(1, machines // heads)

    def cache(self, max_model_len: int | None = None) -> CacheShape:
        """The cache of texts of up to ``max_model_len`` tokens; None: as the model says.

        Raises:
            ConfigError: the model does not allow this length.
        """
        limit = self.position_limit or self.max_positions
        longest = self.max_positions if max_model_len is None else max_model_len
        if not 1 <= longest <= limit:
            raise ConfigError(f"max_model_len is {longest}; this model allows 1 to {limit}")
        stable = self.stable_positions
        return CacheShape(
            windows=self.windows or (None,) * len(self._token_bytes),
            token_bytes=self._token_bytes,
            max_positions=longest,
            depends_on_prompt_length=stable is not None and longest > stable,
            state_bytes=self.state_bytes,
        )

    @property
    def _attention_params(self) -> int:
        """Parameters of a layer's attention."""
        hidden = self.hidden_size
        if self.latent is not None:
            return self.latent.params(hidden, self.num_heads)
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        biases = queries + 2 * keys + hidden if self.biases else 0
        gates = hidden * queries if self.gated_attention else 0
        return hidden * (queries + 2 * keys) + queries * hidden + biases + gates

    @property
    def _attending(self) -> int:
        """Layers that attend."""
        if self.recurrence is None:
            return self.num_layers
        return self.recurrence.count("attention", "both")

    @property
    def _mixer_params(self) -> int:
        """Parameters of attention in all layers, and of what keeps states in its place."""
        total = self._attending * self._attention_params
        if self.recurrence is not None:
            with_state = self.recurrence.count("state", "both")
            total += with_state * self.recurrence.params(self.hidden_size)
        return total

    @property
    def _with_mlp(self) -> int:
        """Layers that have an MLP, or experts."""
        if self.recurrence is None or not self.recurrence.alone:
            return self.num_layers
        return self.recurrence.count("mlp")

    def _mlp_params(self, inner: int) -> int:
        matrices = (3 if self.gated_mlp else 2) * self.hidden_size * inner
        return matrices + (inner + self.hidden_size if self.biases else 0)

    @property
    def _norm_params(self) -> int:
        """Parameters of a layer's norms, with their biases if there are biases."""
        return (4 if self.biases else 2) * self.hidden_size

    @property
    def _mixtures(self) -> int:
        """Layers with experts."""
        return 0 if self.experts is None else sum(self.experts.layers)

    @property
    def _all_mlp_params(self) -> int:
        """Parameters of all layers' MLPs; in mixtures, of routers and shared experts."""
        total = (self._with_mlp - self._mixtures) * self._mlp_params(self.intermediate_size)
        if self.experts is not None:
            router = self.experts.count * self.hidden_size
            shared = self._mlp_params(self.experts.shared_inner) if self.experts.shared_inner else 0
            total += self._mixtures * (router + shared)
        return total

    @property
    def _layers_params(self) -> int:
        """Parameters of all layers, without experts."""
        norms = self.num_layers * self._norm_params
        return self._mixer_params + norms + self._all_mlp_params

    @cached_property
    def _expert_params(self) -> int:
        """Parameters of one expert of each layer that has them."""
        return 0 if self.experts is None else self._mixtures * self._mlp_params(self.experts.inner)

    @property
    def _all_expert_params(self) -> int:
        return 0 if self.experts is None else self.experts.count * self._expert_params

    @property
    def _head_params(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def _table_params(self) -> int:
        """Parameters of embeddings that are looked up, and are no head."""
        positions = self.max_positions * self.hidden_size if self.learned_positions else 0
        return positions + (0 if self.tied_embeddings else self._head_params)

    @cached_property
    def num_params(self) -> int:
        layers = self._layers_params + self._all_expert_params
        return layers + self._head_params + self._table_params

    @property
    def active_params(self) -> int:
        """Parameters that a token goes through."""
        return self.num_params - self._unread_params(1)

    @cached_property
    def weight_form(self) -> WeightForm:
        return self.form or plain_form(self.dtype, BYTES[self.dtype])

    @cached_property
    def weight_bytes(self) -> int:
        if self.stored_bytes is not None:
            return self.stored_bytes
        form = self.weight_form
        return round(
            self._mixer_params * form.attention
            + self._all_mlp_params * form.mlp
            + self._all_expert_params * form.experts
            + self._head_params * form.head
            + (self._table_params + self.num_layers * self._norm_params) * BYTES[self.dtype]
        )

    def weight_bytes_over(self, machines: int) -> int:
        """Bytes in a tensor-parallel group together: some weights are in all machines."""
        if machines == 1:
            return self.weight_bytes
        if self.latent is not None:
            more = (machines - 1) * self.latent.shared_params(self.hidden_size)
        else:
            keys = 2 * self.hidden_size * self.num_kv_heads * self.head_size
            more = (self.kv_copies(machines) - 1) * keys
        return self.weight_bytes + round(self.num_layers * more * self.weight_form.attention)

    def weight_bytes_read(self, num_tokens: int) -> float:
        """Bytes of weights that a step reads: without experts that no token chooses."""
        each = self.weight_form.experts
        if self.stored_bytes is not None:
            each = self.stored_bytes / self.num_params
        return self.weight_bytes - self._unread_params(num_tokens) * each

    def _unread_params(self, num_tokens: int) -> int:
        if self.experts is None:
            return 0
        unread = self.experts.count - self.experts.distinct(num_tokens)
        return round(unread * self._expert_params)

    @cached_property
    def flops_per_token(self) -> int:
        """Operations of the layers' matrices: a multiplication and an addition per parameter."""
        chosen = 0 if self.experts is None else self.experts.chosen
        weights = 2 * (self._layers_params + chosen * self._expert_params)
        if self.recurrence is None:
            return weights
        states = self.recurrence.count("state", "both") * self.recurrence.flops_per_token
        return weights + states

    @property
    def flops_per_sample(self) -> int:
        """Operations of the LM head."""
        return 2 * self.vocab_size * self.hidden_size

    @cached_property
    def flops_per_pair(self) -> int:
        """Operations of attention in prefill, for a token and one that it sees: query times key,
        weight times value.
        """
        if self.latent is not None:
            return self.num_layers * self.latent.flops_per_pair(self.num_heads)
        return 4 * self._attending * self.num_heads * self.head_size

    @cached_property
    def flops_per_decode_pair(self) -> int:
        """The same in decoding."""
        if self.latent is not None:
            return self.num_layers * self.latent.flops_per_decode_pair(self.num_heads)
        return self.flops_per_pair

    @cached_property
    def flops_per_expansion(self) -> int:
        """Operations for the keys and values of a cached token, which a later chunk of a prompt
        makes anew.
        """
        if self.latent is None:
            return 0
        return self.num_layers * self.latent.flops_per_expansion(self.num_heads)
