"""The fields that a GGUF file's metadata may have, so that none of them is ignored.

A field of the architecture that is neither read nor known to change nothing might change what the
model computes: it is refused by name. Fields of other kinds (``general``, ``tokenizer``, how the
file was quantised and by whom) cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from reprlib import repr as short

from quire.core.errors import ModelError
from quire.models.gguf.architecture import Architecture
from quire.models.gguf.header import GGUFFile

_SHOWN = 4  # fields that a refusal names
_WINDOW = "attention.sliding_window"

# Told by tensors, or of how a file was made. A model has one kind of norms, so one of the two.
_ASIDE = (
    "vocab_size",
    "tensor_data_layout",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
)

# What is computed here.
_ALLOWED: Mapping[str, tuple[object, ...]] = {
    "expert_gating_func": (0, 1),  # softmax
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "interleave_moe_layer_step": (0, 1),
    "attention.causal": (True,),
    "attention.rope_pattern": (True,),
    "attention.output_scale": (0, 1),
    "attention.value_scale": (0, 1),
    "pooling_type": (0, 3),  # none, or the last token's state, which is what is given
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "decoder_start_token_id": (-1, 0),
    "rope.scale_linear": (0, 1),
    # Where they are not read.
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 0, 1),
    "rope.scaling.yarn_attn_factor": (0, 1),
    "rope.scaling.yarn_beta_fast": (0, 32),
    "rope.scaling.yarn_beta_slow": (0, 1),
}
_NO_POSITIONS = {"rope.scaling.finetuned": (True,)}  # are told where it is false
_SIGMOIDS = {"expert_gating_func": (0, 2)}
_NORMALISED = {"expert_weights_norm": (False, True)}  # they are, whatever it says
_OF_ARCHITECTURES: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "granite": _NO_POSITIONS,
    "granitemoe": _NO_POSITIONS,
    "qwen3moe": _NORMALISED,
    "qwen3next": _NORMALISED,
    "lfm2moe": _NORMALISED,
    "mellum": _NORMALISED,
    "hy_v3": {"expert_weights_norm": (True,)},
    # Of other kinds llama.cpp computes neither chunks nor layers that know no positions.
    "llama4": {"attention.sliding_window": (8192,)},
    "gpt-oss": {"expert_gating_func": (0, 1, 3)},  # softmax of those that were chosen
}

# As others than llama.cpp's converters call them: Ollama's.
_OTHER_NAMES = {
    "attention.head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "norm_top_k_prob": "expert_weights_norm",
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
}

# As another field, or not there.
_AS_ANOTHER = {
    "expert_feed_forward_length": "feed_forward_length",
    # Layers with a window could differ from all others.
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
    "embedding_length_out": "embedding_length",
    "attention.temperature_length": "rope.scaling.original_context_length",
}


def by_usual_names(file: GGUFFile, known: Architecture) -> GGUFFile:
    """The file with its fields as llama.cpp's converters call them.

    Raises:
        ModelError: a field is there under two names, and they say different things.
    """
    metadata = dict(file.metadata)
    for other, usual in _OTHER_NAMES.items():
        other, usual = f"{known.name}.{other}", f"{known.name}.{usual}"
        if other in metadata:
            value = metadata.pop(other)
            if metadata.setdefault(usual, value) != value:
                raise ModelError(
                    f"{file.path}: {other} is {short(value)}, but {usual} is "
                    f"{short(metadata[usual])}"
                )
    return file._replace(metadata=metadata)


def check_understood(file: GGUFFile, known: Architecture, read: Collection[str]) -> None:
    """ModelError unless everything a file says of its model is read, or changes nothing.

    read: fields that become those of a config.json, by the names after the architecture's.

    Raises:
        ModelError: a field asks for something that is not computed, or is unknown.
    """
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"{file.path}: general.type is {short(kind)}; supported: model")
    allowed = {**_ALLOWED, **_OF_ARCHITECTURES.get(known.name, {})}
    allowed |= _SIGMOIDS if known.sigmoid else {}
    prefix, unknown = f"{known.name}.", list[str]()
    for name in sorted(file.metadata):
        own, value = name.removeprefix(prefix), file.metadata[name]
        if own == name or own in read or _as_another(file, prefix, own, value):
            continue
        if own in allowed:
            if value not in allowed[own]:
                names = ", ".join(map(str, allowed[own]))
                raise ModelError(f"{file.path}: {name} is {short(value)}; supported: {names}")
        elif own not in _ASIDE and not _is_neutral(value) and not _is_endless(file, name, value):
            unknown.append(name)
    if unknown:
        more = [f"{len(unknown) - _SHOWN} more"] if len(unknown) > _SHOWN else []
        names = ", ".join([*(name[:80] for name in unknown[:_SHOWN]), *more])
        raise ModelError(
            f"{file.path}: what it says of the model is not understood, and may change what is "
            f"computed: {names}"
        )


def _as_another(file: GGUFFile, prefix: str, name: str, value: object) -> bool:
    other = _AS_ANOTHER.get(name)
    return other is not None and value == file.metadata.get(prefix + other)


def _is_endless(file: GGUFFile, name: str, value: object) -> bool:
    """Whether it is a window that no text outgrows."""
    architecture, _, own = name.partition(".")
    longest = file.metadata.get(f"{architecture}.context_length")
    if own != _WINDOW or not isinstance(value, int) or not isinstance(longest, int):
        return False
    return value >= longest


def _is_neutral(value: object) -> bool:
    """Whether it says that something is not there."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(one in (0, -1, "") for one in value)
    return value is False or value in (0, "", "none")
