"""The shape that a Hugging Face ``config.json`` describes, or why it describes none we know.

A field that changes what a token costs and is passed over makes every figure wrong without a word.
So every field must be understood, or known to change nothing here; any other is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

from quire.errors import ModelError
from quire.files import read_object
from quire.simulation.config_fields import UNDERSTOOD, kind_of
from quire.simulation.models import BYTES, MODELS, ModelShape

_MOST = 2**31 - 1  # of anything that is counted
_SHOWN = 4  # fields of one kind that a refusal names


@dataclass(frozen=True)
class _Family:
    """What a ``model_type`` does that its configs do not say."""

    gated_mlp: bool = True
    tied: bool = False  # where ``tie_word_embeddings`` is absent
    learned_positions: bool = False
    biases: bool = False
    head_size: int | None = None  # where ``head_dim`` is absent; None: hidden_size / heads
    window_if_used: bool = False  # ``sliding_window`` counts only with ``use_sliding_window``


_PLAIN = _Family(gated_mlp=False, biases=True)
_TIED = _Family(gated_mlp=False, biases=True, tied=True)
_OLD = _Family(gated_mlp=False, biases=True, tied=True, learned_positions=True)

_FAMILIES: Mapping[str, _Family] = {
    **dict.fromkeys(("llama", "mistral", "phi3", "olmo", "olmo2", "granite"), _Family()),
    "qwen2": _Family(window_if_used=True),
    "qwen3": _Family(window_if_used=True, head_size=128),
    "smollm3": _Family(window_if_used=True, tied=True),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _Family(tied=True, head_size=256)),
    **dict.fromkeys(("gpt_neox", "gptj", "phi"), _PLAIN),
    **dict.fromkeys(("bloom", "starcoder2"), _TIED),
    **dict.fromkeys(("opt", "gpt2"), _OLD),
}


def find_model(name: str) -> ModelShape:
    """A model of the catalogue, or the one that a directory or a config.json describes.

    Raises:
        ModelError: there is neither, or the config lacks what a shape needs.
    """
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.exists():
        return read_shape(path)
    close = difflib.get_close_matches(name.lower(), MODELS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ModelError(
        f"model {name!r} is neither in the catalogue nor a config.json; {hint}"
        f"known: {', '.join(MODELS)}"
    )


def read_shape(path: Path) -> ModelShape:
    """The shape that ``path`` describes; no weights are needed.

    Raises:
        ModelError: a size is missing or none, or the model is not one that is simulated; all that
            speaks against it is named.
    """
    values = read_object(path)
    inner = values.get("text_config") or {}
    values = {**values, **(inner if isinstance(inner, dict) else {})}
    config = _Config(values, path)
    _refuse_unknown(config)
    family = _FAMILIES[config.family]
    hidden = config.size("hidden_size", "n_embd")
    heads = config.size("num_attention_heads", "n_head")
    if heads > hidden:
        raise ModelError(f"{path}: {heads} heads are more than the hidden_size, {hidden}")
    if values.get("word_embed_proj_dim") not in (None, hidden):
        raise ModelError(f"{path}: word_embed_proj_dim other than hidden_size is not simulated yet")
    dtype = str(values.get("dtype") or values.get("torch_dtype") or "float16")
    if dtype not in BYTES:
        raise ModelError(f"{path}: dtype is {short(dtype)}; known: {', '.join(BYTES)}")
    return ModelShape(
        name=path.resolve().parent.name if path.name == "config.json" else path.stem,
        num_layers=config.size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=config.size("num_key_value_heads", default=heads),
        head_size=config.size("head_dim", default=family.head_size or hidden // heads),
        intermediate_size=config.size(
            "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden
        ),
        vocab_size=config.size("vocab_size"),
        max_positions=config.max_positions,
        gated_mlp=family.gated_mlp,
        tied_embeddings=bool(values.get("tie_word_embeddings", family.tied)),
        learned_positions=family.learned_positions,
        biases=family.biases and values.get("enable_bias", True) is not False,
        dtype=dtype,
    )


class _Config:
    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path
        # One without a name is a Llama's, as far as its fields are.
        self.family = str(values.get("model_type") or "llama")

    def size(self, *names: str, default: int | None = None) -> int:
        """The field, under the first of these names that is there."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
                raise ModelError(
                    f"{self.path}: {name} must be a number above 0 and at most {_MOST:,}, "
                    f"got {short(value)}"
                )
            return value
        if default is None:
            raise ModelError(f"{self.path}: {names[0]} is missing")
        return default

    @property
    def max_positions(self) -> int:
        return self.size("max_position_embeddings", "n_positions", "seq_length", default=2048)


def _refuse_unknown(config: _Config) -> None:
    found: dict[str, list[str]] = {}
    for name, value in config.values.items():
        if name not in UNDERSTOOD and not _is_neutral(name, value):
            found.setdefault(kind_of(name), []).append(name)
    window = _window(config)
    if window is not None:
        found.setdefault("windows", []).append(window)
    if config.family not in _FAMILIES:
        found[f"the layers of model_type {short(config.family)}"] = []
    if not found:
        return
    parts = []
    for kind, names in found.items():
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        shown = ", ".join([*(name[:60] for name in names[:_SHOWN]), *more])
        parts.append(f"{kind} ({shown})" if shown else kind)
    raise ModelError(
        f"{config.path}: not simulated yet: {'; '.join(parts)}. A field that changes neither the "
        "model's bytes nor its arithmetic can be left out of a copy of the file"
    )


def _is_neutral(name: str, value: Any) -> bool:
    """Whether the field says that something is not there."""
    if name == "num_experts" or name.endswith("_experts"):
        return value in (None, 0, 1)
    return value is None or value is False or value in (0, "", [], {}, "none")


def _window(config: _Config) -> str | None:
    """What says that a layer sees less than all before; None if all see everything."""
    values = config.values
    family = _FAMILIES.get(config.family, _Family())
    types = values.get("layer_types")
    others = set(map(str, types)) - {"full_attention"} if isinstance(types, list) else set()
    if others - {"sliding_attention"}:
        return f"layer_types: {', '.join(sorted(others))}"
    if isinstance(types, list) and not others:
        return None
    window = values.get("sliding_window")
    if window is None or (isinstance(window, int) and window >= config.max_positions):
        return None
    if values.get("use_sliding_window", not family.window_if_used) is False:
        return None
    first = values.get("max_window_layers")
    layers = values.get("num_hidden_layers")
    if family.window_if_used and not others and isinstance(first, int) and isinstance(layers, int):
        return f"sliding_window: {short(window)}" if first < layers else None
    return f"sliding_window: {short(window)}"
