"""Models by their shapes: what a token's keys and values take, and what computing one costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.models.shape.by_layer import LayerSizes
from quire.models.shape.experts import ExpertShape
from quire.models.shape.latent import IndexShape, LatentShape
from quire.models.shape.recurrence import RecurrenceShape

BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
"""Bytes of a number, by dtype."""

_FEW_BITS = {"int4": 0.5, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of a number in keys and values, the last two llama.cpp's with their scales."""

_GROUP_SCALE = 2 / 32  # bytes of a weight's share in a scale, where 32 inputs have one
_BYTE = 1 + 2 / 64  # int8, where 64 have one
_NVFP4 = 0.5 + 1 / 16

MOST_BITS = 6
"""Of weights in ``int4`` and ``w4a8``: what values, the head and the embedding have."""

ROUNDINGS = ("int8", "int4", "w8a8", "w4a8", "fp8", "nvfp4")
"""By which weights may be planned: the engine's own, and the last, which other engines keep."""

_SCALE_BYTES = 4  # of each key and value of a head, where the cache's numbers have 8 bits or 4


@dataclass(frozen=True)
class WeightForm:
    """Bytes of a weight in attention, in MLPs, in experts, and in the head; in embeddings that are
    looked up (``table``), None: as the model's type says.

    name: for people. products: of which type they are, where activations are rounded too: int8,
        fp8 or fp4; "": of the model's own.
    """

    name: str
    attention: float
    mlp: float
    experts: float
    head: float
    products: str = ""
    table: float | None = None


def plain_form(dtype: str, size: float) -> WeightForm:
    """All weights in a type of ``size`` bytes."""
    return WeightForm(dtype, size, size, size, size)


def least_bits(sizes: Sequence[int]) -> int:
    """The fewest bits of a weight of these sizes in ``int4`` and ``w4a8``.

    Models with others than multiples of 256 are small, and lose more. llama.cpp's Q4_K_M has as
    many there, since its groups are of 256.
    """
    return 5 if any(size % 256 for size in sizes) else 4


def rounded_form(
    name: str, plain: WeightForm, attention: float = MOST_BITS, mlp: float = 4, table: int = 4
) -> WeightForm:
    """The form of weights with ``--quantization``. ConfigError: there is no such form.

    attention, mlp: bits of their weights in ``int4`` and ``w4a8``, on average. table: of an
        embedding's that is no head.
    """
    products = "int8" if name in ("w8a8", "w4a8") else ""
    if name in ("int4", "w4a8"):
        most, some, few, fewest = (
            bits / 8 + _GROUP_SCALE for bits in (MOST_BITS, attention, mlp, table)
        )
        return WeightForm(name, some, few, few, most, products, fewest)
    if name in ("int8", "w8a8"):
        return WeightForm(name, _BYTE, _BYTE, _BYTE, _BYTE, products)
    if name == "fp8":  # vLLM leaves the head as it is
        return WeightForm(name, 1, 1, 1, plain.head, "fp8")
    if name == "nvfp4":
        return WeightForm(name, _NVFP4, _NVFP4, _NVFP4, plain.head, "fp4")
    raise ConfigError(f"quantization must be one of {', '.join(ROUNDINGS)}; got {name!r}")


class CacheShape(NamedTuple):
    """The facts of a model that decide how many blocks texts need, and of which size."""

    windows: tuple[int | None, ...]  # by layer: the last tokens that one sees, itself included
    token_bytes: tuple[int, ...]  # by layer: keys and values of a token, as they are kept
    max_positions: int  # the longest text, in tokens
    depends_on_prompt_length: bool  # so blocks of one prompt must not be reused for another
    state_bytes: tuple[int, ...] = ()  # by layer: a sequence's state; 0 or nothing: it has none
    draft_bytes: tuple[int, ...] = ()  # by layer: what a state keeps of each draft
    # by layer: what of token_bytes is scales; nothing: no layer's
    scale_bytes: tuple[int, ...] = ()
    # by layer: of a head's key, and its value where that is kept; nothing: it is not known
    rows: tuple[tuple[int, ...], ...] = ()

    @property
    def bytes_per_token(self) -> int:
        return sum(self.token_bytes)

    @property
    def states(self) -> tuple[int, ...]:
        """``state_bytes`` of every layer."""
        return self.state_bytes or (0,) * len(self.windows)

    def with_draft(self, draft: CacheShape) -> CacheShape:
        """The shape with a draft model's layers after those of the model. Its states keep nothing
        of drafts, which it computes once they are confirmed.

        ConfigError: it keeps states, and the model does not.
        """
        if any(draft.state_bytes) and not any(self.state_bytes):
            raise ConfigError(
                "its layers keep a state, and those of the model that it drafts for do not: "
                "prompts would be found in the prefix cache at fewer places; choose one without"
            )

        def joined(own: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
            if not (own or others):
                return ()
            return (own or (0,) * len(self.windows)) + (others or (0,) * len(draft.windows))

        return CacheShape(
            self.windows + draft.windows,
            self.token_bytes + draft.token_bytes,
            self.max_positions,
            self.depends_on_prompt_length or draft.depends_on_prompt_length,
            joined(self.state_bytes, draft.state_bytes),
            joined(self.draft_bytes, (0,) * len(draft.draft_bytes)),
            joined(self.scale_bytes, draft.scale_bytes),
            self.rows + draft.rows,
        )


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with tuples for lists, since JSON has no tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _part(kind: type[Any], values: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    return kind(**_tuples({name: value for name, value in values.items() if name in known}))


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
    stored_bytes: int | None = None  # of weights, as files have them; None: as ``form`` says
    quire_bytes: int | None = None  # the same, as Quire keeps them
    latent: LatentShape | None = None  # of keys and values; None: each head has its own
    index: IndexShape | None = None  # beside latents; None: a token attends to all that it sees
    by_layer: LayerSizes | None = None  # what differs from layer to layer
    form: WeightForm | None = None  # of weights, as stored; None: as ``dtype`` says
    quire_form: WeightForm | None = None  # as Quire keeps them, where it reads such a form
    stored_kv: str | None = None  # type of keys and values that the checkpoint asks for
    planned_only: bool = False  # Quire has no code of its own for it
    notes: tuple[str, ...] = ()  # what of its config is taken how, and who serves it

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> ModelShape:
        """The shape from what ``asdict`` and JSON make of one; TypeError: it is not one.

        Fields of parts that earlier versions wrote are passed over.
        """
        parts: dict[str, type[Any]] = {
            "experts": ExpertShape,
            "latent": LatentShape,
            "index": IndexShape,
            "by_layer": LayerSizes,
            "form": WeightForm,
            "quire_form": WeightForm,
            "recurrence": RecurrenceShape,
        }
        made: dict[str, Any] = {
            name: _part(parts[name], value) if name in parts and value is not None else value
            for name, value in values.items()
        }
        return cls(**_tuples(made))

    def of_dtype(self, dtype: str) -> ModelShape:
        """The same with floats of another type: what files hold is converted."""
        if dtype == self.dtype:
            return self
        if self.form is not None:  # most of it are no floats
            return replace(self, dtype=dtype)
        return replace(self, dtype=dtype, stored_bytes=None, quire_bytes=None)

    def rounded(self, name: str) -> ModelShape:
        """The same with weights rounded as ``--quantization`` says. ConfigError: no such form."""
        least = least_bits((self.hidden_size, self.intermediate_size))
        mlp = least + (1 / 3 if self.gated_mlp else 1 / 2)  # ``down`` has one more
        attention: float = MOST_BITS
        if self.latent is None and self.recurrence is None:
            queries, keys = (2 + self.gated_attention) * self.num_heads, self.num_kv_heads
            bits = queries * least + keys * (least + 1) + keys * MOST_BITS
            attention = bits / (queries + 2 * keys)
        plain = plain_form(self.dtype, BYTES[self.dtype])
        table = least_bits((self.hidden_size,))
        form = rounded_form(name, plain, attention, mlp, table)
        return replace(self, form=form, quire_form=None, stored_bytes=None, quire_bytes=None)

    def as_quire_keeps(self) -> ModelShape:
        """The same in the forms that Quire has of it in main memory, where it serves the model."""
        if self.planned_only:
            return self
        form = self.quire_form or self.form
        return replace(self, form=form, stored_bytes=self.quire_bytes, stored_kv=None)

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, and their scales if they have 8 bits or 4."""
        return sum(self._token_bytes)

    @property
    def _token_bytes(self) -> tuple[int, ...]:
        """Keys and values of a token, by layer of those that keep something."""
        sizes = self.by_layer
        if sizes is not None:
            each = compress(zip(sizes.kv_heads, sizes.widths, strict=True), sizes.keeping)
            return tuple(
                sum(self._kv_bytes(heads, width) for width in both) for heads, both in each
            )
        states = self.state_bytes or (0,) * self.num_layers
        width = self.latent.width if self.latent is not None else self.head_size
        own = self._kv_bytes(self._kept_heads, width)
        if self.index is not None:
            return tuple(own + has * self._index_bytes for has in self.index.layers)
        return tuple(0 if state else own for state in states)

    @property
    def _index_bytes(self) -> int:
        """Of a token's key in an index."""
        return self._index_row + self._has_scales * _SCALE_BYTES

    @property
    def _index_row(self) -> int:
        """The same without its scale; it has 8 bits at least."""
        return 0 if self.index is None else int(self.index.width * max(1, self._number_bytes))

    @property
    def _has_scales(self) -> bool:
        return self.kv_dtype is not None and self._number_bytes <= 1

    @property
    def _scale_bytes(self) -> tuple[int, ...]:
        """What of keys and values of a token is scales, by layer of those that keep something."""
        if self.by_layer is not None:
            heads = [2 * count for count in compress(self.by_layer.kv_heads, self.by_layer.keeping)]
        else:
            heads = [self._kept_heads if own else 0 for own in self._token_bytes]
        if self.index is not None:
            heads = [1 + has for has in self.index.layers]
        return tuple(count * _SCALE_BYTES if self._has_scales else 0 for count in heads)

    @property
    def _rows(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of a head's key and value without scales, by layer that keeps something."""
        if self.by_layer is not None:
            sizes = compress(self.by_layer.widths, self.by_layer.keeping)
            return tuple(tuple(map(self._row_bytes, both)) for both in sizes)
        if self.latent is not None:
            own: tuple[int, ...] = (self._row_bytes(self.latent.width),)
            if self.index is not None:
                both = *own, self._index_row
                return tuple(both if has else own for has in self.index.layers)
        else:
            own = (self._row_bytes(self.head_size),) * 2
        return tuple(own if size else () for size in self._token_bytes)

    def _row_bytes(self, head_size: int) -> int:
        return int(head_size * self._number_bytes)

    def _kv_bytes(self, kv_heads: int, head_size: int) -> int:
        """Keys and values of a token, with their scales."""
        return kv_heads * (self._row_bytes(head_size) + self._has_scales * _SCALE_BYTES)

    @property
    def _number_bytes(self) -> float:
        kind = self.kv_dtype or self.stored_kv or self.dtype
        return _FEW_BITS.get(kind) or BYTES[kind]

    @property
    def _kept_heads(self) -> int:
        """The number of heads of keys and of values together."""
        return 1 if self.latent is not None else 2 * self.num_kv_heads

    def kv_copies(self, machines: int) -> int:
        """Copies of each key and value in a tensor-parallel group: too few heads are copied."""
        heads = 1 if self.latent is not None else self.num_kv_heads
        if self.by_layer is not None:
            heads = min(self.by_layer.kv_heads)
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
        stable, token_bytes = self.stable_positions, self._token_bytes
        windows = self.windows or (None,) * len(token_bytes)
        if self.by_layer is not None and self.windows:
            windows = tuple(compress(windows, self.by_layer.keeping))
        return CacheShape(
            windows=windows,
            token_bytes=token_bytes,
            max_positions=longest,
            depends_on_prompt_length=stable is not None and longest > stable,
            state_bytes=self.state_bytes,
            draft_bytes=self.recurrence.kept_of_drafts(self.hidden_size) if self.recurrence else (),
            scale_bytes=self._scale_bytes,
            rows=self._rows,
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
    def _index_params(self) -> int:
        """Parameters of the indexes of all layers."""
        if self.index is None or self.latent is None:
            return 0
        own = self.index.params(self.hidden_size, self.latent.query_rank or self.hidden_size)
        return sum(self.index.layers) * own

    @property
    def _attending(self) -> int:
        """Layers that attend."""
        if self.recurrence is None:
            return self.num_layers
        return self.recurrence.count("attention", "both")

    @property
    def _mixer_params(self) -> int:
        """Parameters of attention in all layers, and of what keeps states in its place."""
        sizes, hidden, heads = self.by_layer, self.hidden_size, self.num_heads
        if sizes is not None:
            return sum(sizes.attention_params(n, hidden, heads) for n in range(self.num_layers))
        total = self._attending * self._attention_params + self._index_params
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
        if self.by_layer is not None:
            total = self.num_layers * self.by_layer.given_params(self.hidden_size)
            total += self.by_layer.streams_params(self.hidden_size)
            mixed = self.experts.layers if self.experts is not None else (False,) * self.num_layers
            inners = compress(self.by_layer.inners, (not has for has in mixed))
            total += sum(map(self._mlp_params, inners))
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
        given = 0 if self.by_layer is None else self.by_layer.given_table_params
        return positions + given + (0 if self.tied_embeddings else self._head_params)

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
            + self._table_params * self._table_bytes
            + self.num_layers * self._norm_params * BYTES[self.dtype]
        )

    @property
    def _table_bytes(self) -> float:
        """Bytes of a number in embeddings that are looked up."""
        table = self.weight_form.table
        return BYTES[self.dtype] if table is None else table

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
        """Bytes of weights that a step reads: of embeddings the tokens' rows, of experts those that
        some token chooses.
        """
        experts = self._unread_params(num_tokens) * self.weight_form.experts
        given = 0 if self.by_layer is None else self.num_layers * self.by_layer.given
        rows = max(0, self._table_params - num_tokens * (self.hidden_size + given))
        return self.weight_bytes - experts - rows * self._table_bytes

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
            return self._attending * self.latent.flops_per_pair(self.num_heads)
        widths = 2 * self._attending * self.head_size
        if self.by_layer is not None:
            widths = sum(map(sum, self.by_layer.widths))
        return 2 * widths * self.num_heads

    @cached_property
    def flops_per_decode_pair(self) -> int:
        """The same in decoding."""
        if self.latent is not None:
            return self._attending * self.latent.flops_per_decode_pair(self.num_heads)
        return self.flops_per_pair

    @cached_property
    def flops_per_expansion(self) -> int:
        """Operations for the keys and values of a cached token, which a later chunk of a prompt
        makes anew.
        """
        if self.latent is None:
            return 0
        return self._attending * self.latent.flops_per_expansion(self.num_heads)

    @cached_property
    def flops_per_score(self) -> int:
        """Operations of all indexes for a token and one that it sees; 0: there are none."""
        if self.index is None:
            return 0
        return sum(self.index.layers) * self.index.flops_per_pair

    @cached_property
    def index_bytes_per_token(self) -> int:
        """What of ``kv_bytes_per_token`` is keys by which an index chooses."""
        return 0 if self.index is None else sum(self.index.layers) * self._index_bytes
