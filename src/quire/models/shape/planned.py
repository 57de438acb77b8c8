"""How weights are stored, for the engine that keeps them so: ``quantization_config`` read whole.

Quire itself reads fewer forms, and keeps some in more bytes (``stored``). Here each module has its
own form, for other engines keep them all. Fields of how a checkpoint was made change nothing; one
that may say which modules are rounded, and how, is understood or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from quire.core.errors import ModelError
from quire.models.shape.fields import ConfigFields
from quire.models.shape.stored import (
    Scheme,
    StoredWeights,
    is_quick,
    method_of,
    names_in,
    read_groups,
    read_scheme,
    read_stored,
)

PARTS = ("attention", "mlp", EXPERTS := "experts", "head")
"""Of a model, each in a form of its own."""

_MOST_STARS = 4  # in a pattern

# Of NVIDIA's ModelOpt: bits, weights that share a scale, and the type of products.
_ALGORITHMS: Mapping[str, tuple[int, int | None, str]] = {
    "FP8": (8, None, "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, None, "fp8"),
    "FP8_PB_WO": (8, None, ""),
    "MXFP8": (8, 32, "fp8"),
    "NVFP4": (4, 16, "fp4"),
    "NVFP4_AWQ": (4, 16, "fp4"),
    "W4A16_NVFP4": (4, 16, ""),
    "MXFP4": (4, 32, ""),
    "W4A8_MXFP4_FP8": (4, 32, "fp8"),
    "W4A8_NVFP4_FP8": (4, 16, "fp8"),
}
_FLOAT_FORMATS = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}
"""Of compressed-tensors, in 4 bits, and weights that share a scale."""

_NONE, _MIXED = ("none", "unquantized"), "MIXED_PRECISION"

_CACHES = {"FP8": "fp8", "INT8": "int8"}
"""Types of keys and values, by their names in files."""

_LEFT_OUT = (
    "modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore",
    "llm_int8_skip_modules",
)  # fmt: skip
"""Fields that list what is not rounded, in one method or another."""

_OF_CACHE = ("kv_cache_scheme", "kv_cache_quant_algo")

# Names that may say what is rounded, and how; other fields are of how that was found.
_TELLING = re.compile(
    r"module|layer|ignore|exclude|skip|convert|kv|cache_|algo|bits|group|block|head|embed|dtype"
    r"|data_type|format|scheme|expert|sparsity|transform|rotation|codebook"
)
_FIELDS = """
    activation_scheme static_groups bits w_bit group_size q_group_size checkpoint_format format
    pack_dtype lm_head is_marlin_format dynamic block_name_to_quantize to_quant_block_names
    modules_in_block_to_quantize module_name_preceding_first_block modules_to_fuse
    cache_block_outputs cache_examples_on_gpu act_bits act_data_type act_group_size data_type
    packing_format extra_config scale_dtype super_bits super_group_size quant_lm_head
    enable_quanted_input quant_block_list rotation_config load_in_4bit load_in_8bit _load_in_4bit
    _load_in_8bit bnb_4bit_quant_storage bnb_4bit_compute_dtype llm_int8_enable_fp32_cpu_offload
    config_groups sparsity_config transform_config quantized_layers quant_algo moe_quant_algo
    weight_block_size scale_fmt act_group_aware
"""
_KNOWN = frozenset(_FIELDS.split()).union(_LEFT_OUT, _OF_CACHE)


class Rounding(NamedTuple):
    """How a checkpoint is rounded.

    scheme_of: of a module that has any of these names; None: it is not rounded.
    parts: that may be rounded, whatever is listed; None: all.
    """

    name: str
    scheme_of: Callable[[tuple[str, ...]], Scheme | None]
    parts: tuple[str, ...] | None = PARTS[:-1]


class Paths:
    """Modules as lists name them: by a path, by a part of one, or by a pattern with stars."""

    def __init__(self, section: ConfigFields, listed: str, names: Iterable[str]) -> None:
        """ModelError if a pattern of the ``listed`` field could keep matching busy."""
        self._parts = set()
        patterns = []
        for name in names:
            if "*" not in name:
                self._parts.add(name)
            elif name.count("*") > _MOST_STARS:
                raise section.wrong(listed, f"names with at most {_MOST_STARS} stars", name)
            else:
                patterns.append(".*".join(map(re.escape, name.split("*"))))
        self._pattern = re.compile(f"(?:{'|'.join(patterns)})(?:\\.|$)") if patterns else None

    def holds(self, names: Iterable[str]) -> bool:
        """Whether a module with any of these names is one of them, or within one."""
        return any(self._holds(name) for name in names)

    def _holds(self, name: str) -> bool:
        if self._pattern is not None and self._pattern.match(name):
            return True
        words = name.split(".")
        return any(
            ".".join(words[first:end]) in self._parts
            for first in range(len(words))
            for end in range(first + 1, len(words) + 1)
        )


def read_planned(section: ConfigFields) -> Rounding:
    """The rounding that a ``quantization_config`` describes.

    Raises:
        ModelError: the method, a variant of it or a field is not known; it is named.
    """
    _check_fields(section)
    method = method_of(section)
    if method == "modelopt":
        return _modelopt(section)
    if method == "compressed-tensors":
        return _compressed_tensors(section)
    if method == "mxfp4":  # gpt-oss
        experts = replace(read_stored(section).scheme, scale_bytes=1)
        return Rounding(method, lambda names: experts, (EXPERTS,))
    stored = read_stored(section)
    ((_, scheme),) = stored.schemes
    if method in ("fp8", "fbgemm_fp8"):
        scheme = replace(scheme, products="fp8")
    left_out, only = _left_out(section), _only(section)

    def scheme_of(names: tuple[str, ...]) -> Scheme | None:
        if any(one.holds(names) for one in left_out) or not (only is None or only.holds(names)):
            return None
        return None if _is_excepted(section, names) else scheme

    return Rounding(stored.method, scheme_of)


def stored_cache(section: ConfigFields) -> str | None:
    """The type that keys and values are to have by a ``quantization_config``; None: the model's.

    Raises:
        ModelError: it is one that no plan knows.
    """
    for one in (section, section.section("quantization")):
        for name in _OF_CACHE:
            value = one.values.get(name)
            if isinstance(value, Mapping):
                value = _cache_of(one.section(name)) if value else None
            if value is None or str(value).casefold() in _NONE:
                continue
            if str(value).upper() not in _CACHES:
                raise ModelError(
                    f"{one.source}: {name} is {str(value)[:80]}; known: {', '.join(_CACHES)}"
                )
            return _CACHES[str(value).upper()]
    return None


def _cache_of(scheme: ConfigFields) -> str:
    kind = scheme.get("type", str, "int")
    return f"{'FP' if kind == 'float' else kind.upper()}{scheme.get('num_bits', int, 0)}"


def _check_fields(section: ConfigFields) -> None:
    """ModelError for a field that may say what is rounded, and is not known."""
    for one in (section, section.section("quantization")):
        for name, value in one.values.items():
            given = value not in (None, False, 0, "", "none") and value != [] and value != {}
            if given and name not in _KNOWN and _TELLING.search(name):
                raise ModelError(
                    f"{one.source} has {name[:80]}, which is not known: leave it out of a copy of "
                    "the file if it changes no weight"
                )


def _left_out(section: ConfigFields) -> list[Paths]:
    return [Paths(section, name, names_in(section, name)) for name in _LEFT_OUT if name in section]


def _only(section: ConfigFields) -> Paths | None:
    """The modules that alone are rounded; None: all of their class (AutoGPTQ)."""
    name = "modules_in_block_to_quantize"
    lists = section.get(name, list, [])
    if not lists:
        return None
    flat = [one for part in lists for one in (part if isinstance(part, list) else [part])]
    if not all(isinstance(one, str) for one in flat):
        raise section.wrong(name, "lists of names")
    return Paths(section, name, flat)


def _is_excepted(section: ConfigFields, names: tuple[str, ...]) -> bool:
    """Whether GPTQModel's ``dynamic`` or AutoRound's ``extra_config`` leaves a module as floats."""
    excepted = [name[2:] for name in section.get("dynamic", dict, {}) if name.startswith("-:")]
    extra = section.section("extra_config")
    for name in extra.values:
        if name in names and extra.section(name).get("bits", int, 0) >= 16:
            return True
    for pattern in excepted:
        if not is_quick(pattern):
            raise section.wrong("dynamic", "short regular expressions", pattern)
    return any(re.match(pattern, name) for pattern in excepted for name in names)


def _modelopt(section: ConfigFields) -> Rounding:
    """The rounding of ModelOpt: one algorithm, or one for each of the layers that are listed."""
    inner = section.section("quantization") if "quantization" in section else section
    left_out, algorithm = _left_out(inner), inner.get("quant_algo", str, "none")
    by_layer: list[tuple[Paths, Scheme | None]] = []
    if algorithm == _MIXED:
        listed: dict[str, list[str]] = {}
        layers = inner.section("quantized_layers")
        for name in layers.values:
            listed.setdefault(layers.section(name).get("quant_algo", str), []).append(name)
        for own, names in listed.items():
            scheme = None if own.casefold() in _NONE else _of_algorithm(inner, own)
            by_layer.append((Paths(inner, "quantized_layers", names), scheme))
        if not by_layer:
            raise ModelError(f"{inner.source}: quant_algo {_MIXED} without quantized_layers")
        most = next(iter(listed))
    else:
        most, whole = algorithm, _of_algorithm(inner, algorithm)

    def scheme_of(names: tuple[str, ...]) -> Scheme | None:
        if any(one.holds(names) for one in left_out):
            return None
        if algorithm != _MIXED:
            return whole
        return next((scheme for paths, scheme in by_layer if paths.holds(names)), None)

    return Rounding(most.lower(), scheme_of, None if algorithm == _MIXED else PARTS[:-1])


def _of_algorithm(section: ConfigFields, name: str) -> Scheme:
    if name not in _ALGORITHMS:
        known = ", ".join((*_ALGORITHMS, _MIXED))
        raise ModelError(f"{section.source}: quant_algo is {name[:80]}; known: {known}")
    bits, group, products = _ALGORITHMS[name]
    return Scheme("float", bits, group, scale_bytes=1, products=products)


def _compressed_tensors(section: ConfigFields) -> Rounding:
    stored = read_groups(section, _scheme)
    if any("Embedding" in targets for targets, _ in stored.schemes):
        raise ModelError(f"{section.source}: config_groups round the embeddings: not known yet")
    name = _name_of(stored, section.get("format", str, ""))
    return Rounding(name, lambda names: stored.scheme_of(*names), None)


def _name_of(stored: StoredWeights, form: str) -> str:
    return form.removesuffix("-pack-quantized") if form in _FLOAT_FORMATS else stored.method


def _scheme(group: ConfigFields, form: str) -> Scheme:
    """A group's scheme: of 4 bits in floats, or as Quire reads it; and its products."""
    rows = group.section("input_activations")
    if form in _FLOAT_FORMATS:
        size = group.section("weights").get("group_size", int, _FLOAT_FORMATS[form])
        products = {4: "fp4", 8: "fp8"}.get(rows.get("num_bits", int, 16), "")
        return Scheme("float", 4, size, scale_bytes=1, products=products)
    return replace(read_scheme(group, form), products=_products(rows) if rows.values else "")


def _products(rows: ConfigFields) -> str:
    """The type of products by what activations are rounded to; of others than 8 bits, floats."""
    kind: Any = rows.get("type", str, "int")
    if rows.get("num_bits", int, 8) != 8:
        return ""
    return "fp8" if kind == "float" else "int8"
