"""The shape that a Hugging Face ``config.json`` describes, or why it describes none we know.

A field that changes what a token costs and is passed over makes every figure wrong without a word.
So every field must be understood, or known to change nothing here; any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from quire.core.errors import ModelError
from quire.models.gguf import GGUFFile, config_of, is_gguf, open_gguf
from quire.models.shape.by_layer import (
    LayerSizes,
    filled_in,
    layer_sizes_of,
    sizes_by_kind,
    stream_sizes_of,
    widest,
)
from quire.models.shape.config_file import read_config_file
from quire.models.shape.experts import ExpertShape, experts_of
from quire.models.shape.families import FamilyFacts, find_family
from quire.models.shape.fields import MOST_LAYERS, ConfigFields
from quire.models.shape.latent import index_of, latent_of
from quire.models.shape.model_shape import BYTES, ModelShape
from quire.models.shape.modules import stored_forms
from quire.models.shape.planned import stored_cache
from quire.models.shape.positions import positions_of
from quire.models.shape.recurrence import recurrence_of
from quire.models.shape.towers import decoder_of, is_with_images
from quire.models.shape.understood import (
    GUESSING,
    OF_EXPERTS,
    OF_INDEXES,
    OF_LATENTS,
    OF_STATES,
    UNDERSTOOD,
    is_neutral,
    is_of_images,
    kind_of,
)
from quire.models.shape.weighed import weighed_gguf, weighed_safetensors
from quire.models.shape.windows import ATTENTION_KINDS, windows_in_force, windows_of

_CHOSEN = "indexed_attention"  # of ``layer_types``
_SHOWN = 4  # fields of one kind that a refusal names
_UNDERSTOOD_SOMEWHERE = UNDERSTOOD | OF_EXPERTS | OF_LATENTS | OF_INDEXES | OF_STATES
"""Fields that some family has: of a family that is not known, only others are worth naming."""


def read_shape(path: Path, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape that a config.json, a directory with one or a GGUF file describes.

    overrides: over the fields of the file.

    Raises:
        ModelError: a size is missing or none, or the model is not one whose shape is known; all
            that speaks against it is named.
    """
    path = path / "config.json" if path.is_dir() else path
    file = open_gguf(path) if is_gguf(path) else None
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    shape = shape_of(name, _text_fields(path, file, overrides))
    if file is None:
        weighed = weighed_safetensors(path.parent, shape)
        plain = weighed if shape.form is None else None  # others Quire may keep in another form
        return replace(shape, stored_bytes=weighed, quire_bytes=plain)
    stored, kept = weighed_gguf(file, shape)
    return replace(
        shape,
        form=stored.form,
        quire_form=kept.form,
        stored_bytes=stored.num_bytes,
        quire_bytes=kept.num_bytes,
    )


def shape_of(name: str, fields: ConfigFields) -> ModelShape:
    """The shape that the fields of a config.json describe. ModelError: see ``read_shape``."""
    is_served = is_with_images(fields)
    fields, whole = _with_text(fields)
    family = _known_family(fields)
    if whole:
        family = replace(family, model_type=whole, planned_only=not is_served)
    fields = filled_in(fields, family)
    num_layers = _size(fields, "num_hidden_layers", "n_layer")
    if num_layers > MOST_LAYERS:
        raise ModelError(
            f"{fields.source}: num_hidden_layers is {num_layers:,}, above {MOST_LAYERS:,}"
        )
    hidden = _size(fields, "hidden_size", "n_embd")
    heads = _size(fields, "num_attention_heads", "n_head")
    if heads > hidden:
        raise ModelError(f"{fields.source}: {heads} heads are more than the hidden_size, {hidden}")
    if fields.positive("word_embed_proj_dim", hidden) != hidden:
        raise ModelError(
            f"{fields.source}: word_embed_proj_dim other than hidden_size is not simulated yet"
        )
    dtype = _dtype(fields)
    has_states = family.recurrence is not None
    recurrence = recurrence_of(fields, family, num_layers) if has_states else None
    positions = positions_of(fields, family)
    windows = windows_in_force(_windows(fields, family), positions.limit)
    shape = ModelShape(
        name=name,
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, family, heads),
        head_size=fields.positive("head_dim", family.head_size or hidden // heads),
        intermediate_size=_size(
            widest(fields, family), "intermediate_size_mlp", "prefix_dense_intermediate_size",
            "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden,
        ),
        vocab_size=fields.positive("vocab_size"),
        max_positions=positions.default,
        gated_mlp=family.gated_mlp,
        tied_embeddings=fields.get("tie_word_embeddings", bool, family.tied),
        learned_positions=family.learned_positions,
        biases=family.biases and fields.get("enable_bias", bool, True),
        dtype=dtype,
        windows=windows if any(windows) else (),
        experts=_experts(fields, family),
        recurrence=recurrence,
        gated_attention=family.gated_attention,
        state_bytes=() if recurrence is None else recurrence.kept(hidden),
        position_limit=positions.limit,
        stable_positions=positions.stable,
        latent=latent_of(fields) if family.latent else None,
        index=index_of(fields, num_layers) if family.index else None,
        by_layer=_by_layer(fields, family),
        planned_only=family.planned_only,
        notes=_notes(fields, family, bool(whole)),
    )  # fmt: skip
    return _as_rounded(shape, fields.section("quantization_config"))


def _as_rounded(shape: ModelShape, section: ConfigFields) -> ModelShape:
    """The shape with the forms that a checkpoint's weights, keys and values are rounded to."""
    if not section.values:
        return shape
    form, quire_form = stored_forms(section, shape)
    return replace(shape, form=form, quire_form=quire_form, stored_kv=stored_cache(section))


def _experts(fields: ConfigFields, family: FamilyFacts) -> ExpertShape | None:
    if not family.experts or fields.values.get("num_local_experts") == 0:
        return None
    if family.by_layer and not fields.get("enable_moe_block", bool, False):
        return None
    return experts_of(fields, family.shared_experts)


def _by_layer(fields: ConfigFields, family: FamilyFacts) -> LayerSizes | None:
    if family.other_heads:
        return sizes_by_kind(fields, windows_of(fields, family))
    if not family.by_layer:
        return None
    sizes_of = stream_sizes_of if family.streams else layer_sizes_of
    return sizes_of(fields, windows_of(fields, family))


def _dtype(fields: ConfigFields) -> str:
    dtype = str(fields.values.get("dtype") or fields.values.get("torch_dtype") or "float16")
    if dtype not in BYTES:
        raise ModelError(f"{fields.source}: dtype is {short(dtype)}; known: {', '.join(BYTES)}")
    return dtype


def _notes(fields: ConfigFields, family: FamilyFacts, is_part: bool) -> tuple[str, ...]:
    """What a plan leaves out, and what serves the model."""
    notes = []
    if family.planned_only:
        notes.append(
            f"Quire has no code of its own for {family.model_type}: this is a plan for an engine "
            "that has, and pages its cache alike"
        )
    if any(not is_neutral(name, fields.values) for name in GUESSING):
        notes.append("layers that guess further tokens are left out: only speculation loads them")
    if family.index:
        notes.append(
            "beyond index_topk tokens attention is counted over those that an index chooses, as if "
            "all texts of a step were equally long: where they are not, steps are a little faster"
        )
    if is_part:
        notes.append("texts only: what sees images is left out")
    return tuple(notes)


def _text_fields(
    path: Path, file: GGUFFile | None, overrides: Mapping[str, Any] | None
) -> ConfigFields:
    if file is None:
        return read_config_file(path, overrides)
    told = {**config_of(file), **(overrides or {})}
    told.pop("quantization_config", None)  # the tensors tell their bytes
    return ConfigFields(told, str(path))


def _with_text(fields: ConfigFields) -> tuple[ConfigFields, str]:
    """The fields of the decoder, where those of other parts are beside it; and the type of what it
    is part of, or "".

    ModelError: a field of the whole is not known.
    """
    decoder, inner = decoder_of(fields), fields.values.get("text_config")
    if decoder is None:
        return (
            fields.holding({**fields.values, **inner}) if isinstance(inner, dict) else fields
        ), ""
    if isinstance(inner, dict):
        found = _by_kind(
            name
            for name, value in fields.values.items()
            if not (name in UNDERSTOOD or is_of_images(name) or isinstance(value, dict))
            and not is_neutral(name, fields.values)
        )
        if found:
            raise ModelError(_refusal(fields.source, found))
    return decoder, fields.get("model_type", str, "")


def _size(fields: ConfigFields, *names: str, default: int | None = None) -> int:
    """The field, under the first of these names that is there."""
    for name in names:
        if name in fields:
            return fields.positive(name)
    return fields.positive(names[0], default)


def _kv_heads(fields: ConfigFields, family: FamilyFacts, heads: int) -> int:
    """The number of KV heads, in most models' words or in Falcon's."""
    if "num_kv_heads" not in family.own_fields:
        return fields.positive("num_key_value_heads", heads)
    grouped = fields.get("new_decoder_architecture", bool, False)
    if not grouped and fields.get("multi_query", bool, True):
        return 1
    return fields.positive("num_kv_heads", heads)


def _known_family(fields: ConfigFields) -> FamilyFacts:
    """The family, or ModelError with everything in the config that is not understood."""
    # A config without a name is a Llama's, as far as its fields are.
    model_type = fields.get("model_type", str, "llama")
    architectures = fields.values.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    family = find_family(architecture, model_type)
    understood = _UNDERSTOOD_SOMEWHERE if family is None else _understood(family)
    names = (name for name in fields.values if name not in understood)
    found = _by_kind(name for name in names if not is_neutral(name, fields.values))
    window = _unknown_window(fields, family)
    if window is not None:
        found.setdefault("windows", []).append(window)
    if family is None or find_family(None, model_type) is None:
        found[f"the layers of model_type {short(model_type)}"] = []
    elif isinstance(architecture, str) and not family.is_called(architecture):
        found[f"the layers of architecture {short(architecture)}"] = []
    if family is None or found:
        raise ModelError(_refusal(fields.source, found))
    return family


def _understood(family: FamilyFacts) -> frozenset[str]:
    """The fields that are looked at in configs of a family, or change nothing there."""
    understood = UNDERSTOOD.union(family.own_fields, dict(family.words))
    if family.experts:
        understood |= OF_EXPERTS
    if family.recurrence is not None:
        understood |= OF_STATES
    if family.index:
        understood |= OF_INDEXES
    return understood | OF_LATENTS if family.latent else understood


def unusual(fields: ConfigFields) -> str:
    """What a config has that no family here has, by its likely subject; "": nothing."""
    names = (name for name in fields.values if name not in _UNDERSTOOD_SOMEWHERE)
    return "; ".join(_told(_by_kind(name for name in names if not is_neutral(name, fields.values))))


def _by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(kind_of(name), []).append(name)
    return found


def _told(found: Mapping[str, list[str]]) -> list[str]:
    parts = []
    for kind, names in found.items():
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        shown = ", ".join([*(name[:100] for name in names[:_SHOWN]), *more])
        parts.append(f"{kind} ({shown})" if shown else kind)
    return parts


def _refusal(source: str, found: Mapping[str, list[str]]) -> str:
    if all(found.values()):
        then = (
            "A field that changes neither the model's bytes nor its arithmetic can be left out of "
            "a copy of the file"
        )
    else:
        then = "It may be served all the same, through transformers: docs/reference/families.md"
    return f"{source}: not simulated yet: {'; '.join(_told(found))}. {then}"


def _windows(fields: ConfigFields, family: FamilyFacts) -> tuple[int | None, ...]:
    if family.window == "never":
        return ()
    return windows_of(fields, family)


def _unknown_window(fields: ConfigFields, family: FamilyFacts | None) -> str | None:
    """The field by which a layer sees less than all before, in a way that is not known here."""
    types = set(map(str, fields.get("layer_types", list, [])))
    if family is not None and family.window == "chunked":
        return None
    if family is not None and family.recurrence is not None:
        types = set()  # of which ``parts_of`` knows
    if family is not None and family.index:
        types -= {_CHOSEN}
    if others := types - ATTENTION_KINDS:
        return f"layer_types: {', '.join(sorted(others))}"
    window = fields.values.get("sliding_window")
    if window in (None, 0) or types == {"full_attention"}:
        return None
    if family is not None and family.window != "never":
        return None
    if fields.values.get("use_sliding_window") is False:
        return None
    longest = positions_of(fields, family).limit if family is not None else 0
    if isinstance(window, int) and longest and window >= longest:
        return None
    return f"sliding_window: {short(window)}"
