"""How a checkpoint's weights are stored: what ``quantization_config`` says, or why it is refused.

Only what is common to a checkpoint is read here; where its tensors are and what they hold is for
the loader (``models/linear/checkpoints``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from quire.core.errors import ModelError
from quire.models.shape.fields import ConfigFields

Method = Literal["gptq", "awq", "compressed-tensors", "fp8", "bitsandbytes", "mxfp4"]

_LINEAR = "Linear"  # the class of projections
_SCALE_BYTES = 2
_BLOCK_SCALE_BYTES = 4
_CODEBOOK_GROUP = 64  # of bitsandbytes, whose scales have a byte
_MOST_REPEATS = 6  # in a regular expression

# What cannot be read, and what its model is better converted to.
_OTHERS = {
    "aqlm": "its codebooks are not read",
    "bitnet": "its ternary weights are not read",
    "eetq": "take the model it was made of, with --quantization int8",
    "exl2": "take the model it was made of, with --quantization int4",
    "exl3": "take the model it was made of, with --quantization int4",
    "higgs": "take the model it was made of, with --quantization int4",
    "hqq": "take the model it was made of, with --quantization int4",
    "quanto": "take the model it was made of, with --quantization int8 or int4",
    "quark": "export it to compressed-tensors or AWQ",
    "quip": "its codebooks are not read",
    "spqr": "take the model it was made of, with --quantization int4",
    "torchao": "take the model it was made of, with --quantization int8 or int4",
    "vptq": "its codebooks are not read",
}
_SUPPORTED = (
    "auto-round, awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, mxfp4"
)
_SPELLINGS = {
    "compressed_tensors": "compressed-tensors",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
}
_DENSE = "save the model it was made of without them, and use --quantization"


@dataclass(frozen=True)
class Scheme:
    """How the weights of projections are stored."""

    kind: Literal["int", "packed", "float", "codebook"]  # packed: several codes in an int32
    bits: int
    group: int | None = None  # inputs that share a scale; None: all of an output
    block: tuple[int, int] | None = None  # outputs and inputs that share a scale
    symmetric: bool = True
    rounds_rows: bool = False  # activations are rounded to int8, each row to its own scale
    scale_bytes: int = 2  # of a group, in the file
    products: str = ""  # of which type, by engines that round activations as is said: fp8, int8...

    def bytes_kept(self, dtype_bytes: int) -> float:
        """Bytes of a weight in memory: integers stay as they are, others become the model's dtype.

        Codes of fewer bits than 4 take 4. Other engines keep what is stored.
        """
        if self.kind in ("float", "codebook"):
            return dtype_bytes
        codes = 0.5 if self.bits <= 4 else 1.0
        return codes + (0 if self.group is None else _SCALE_BYTES / self.group)

    @property
    def bytes_stored(self) -> float:
        """Bytes of a weight in the file, scales included where several share an input's."""
        codes = self.bits / 8 if self.kind != "int" else 1.0
        if self.kind == "codebook":
            return codes + 1 / _CODEBOOK_GROUP
        if self.block is not None:
            return codes + _BLOCK_SCALE_BYTES / (self.block[0] * self.block[1])
        return codes + (0 if self.group is None else self.scale_bytes / self.group)


@dataclass(frozen=True)
class StoredWeights:
    """The content of ``quantization_config``, for all projections together."""

    method: Method
    schemes: tuple[tuple[tuple[str, ...], Scheme], ...]  # and which projections have each
    ignored: tuple[str, ...] = ()
    zero_offset: int = 0  # that was taken off zeros before they were stored
    ordered: bool = False  # inputs are in groups by their activations, and tensors tell which

    @property
    def scheme(self) -> Scheme:
        """The one that most projections have: that of their class, or else the first."""
        of_class = (scheme for targets, scheme in self.schemes if _LINEAR in targets)
        return next(of_class, self.schemes[0][1])

    def scheme_of(self, *names: str, kind: str = _LINEAR) -> Scheme | None:
        """The scheme of a module that has any of these names; None: floats.

        If several targets match it, its name comes before patterns, and those before its class; of
        patterns the first in the alphabet, as compressed-tensors itself chooses when it writes.

        kind: the module's class.
        """
        if any(_nearness(target, names, kind) is not None for target in self.ignored):
            return None
        found: dict[tuple[int, str], Scheme] = {}
        for targets, scheme in self.schemes:
            for target in targets:
                nearness = _nearness(target, names, kind)
                if nearness is not None:
                    found[nearness, target] = scheme
        return found[min(found)] if found else None


def _nearness(target: str, names: Collection[str], kind: str) -> int | None:
    """How exactly a target means a module, 0 most; None: it means others."""
    if target in names:
        return 0
    if target.startswith("re:"):
        return 1 if any(re.match(target[3:], name) for name in names) else None
    return 2 if target == kind else None


def read_stored(section: ConfigFields) -> StoredWeights:
    """The weights that a ``quantization_config`` describes.

    Raises:
        ModelError: the method, or a variant of it, is not supported; names those that are.
    """
    return _READERS[method_of(section)](section)


def method_of(section: ConfigFields) -> str:
    """The method by which weights were rounded. ModelError: it is none of those that are known."""
    method = section.get("quant_method", str, _unnamed(section))
    method = _SPELLINGS.get(method, method)
    if method not in _READERS:
        _refuse(section, f"quant_method {method}; supported: {_SUPPORTED}", _OTHERS.get(method))
    return method


def _unnamed(section: ConfigFields) -> str:
    if "quant_algo" in section:
        return "modelopt"
    return "bitsandbytes" if "load_in_4bit" in section else "unnamed"


def _refuse(section: ConfigFields, what: str, instead: str | None = None) -> NoReturn:
    more = "" if instead is None else f"; {instead}"
    raise ModelError(f"{section.source} has {what[:200]}{more}")


def _group(section: ConfigFields, *names: str) -> int | None:
    """Inputs of a group under one of these names; None: all of them."""
    for name in names:
        if name in section:
            size = section.get(name, int)
            if size == -1:
                return None
            if size < 1:
                _refuse(section, f"{name} {size}")
            return size
    return 128


def _block(section: ConfigFields, name: str) -> tuple[int, int] | None:
    sizes = section.get(name, list, [])
    if not sizes:
        return None
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise section.wrong(name, "two positive numbers")
    return sizes[0], sizes[1]


def _fp8(section: ConfigFields) -> StoredWeights:
    scheme = Scheme("float", 8, block=_block(section, "weight_block_size"))
    return StoredWeights("fp8", (((_LINEAR,), scheme),))


def _mxfp4(section: ConfigFields) -> StoredWeights:
    """MXFP4 of experts, whatever it is said not to convert."""
    return StoredWeights("mxfp4", (((_LINEAR,), Scheme("packed", 4, 32)),))


def _modelopt(section: ConfigFields) -> StoredWeights:
    """FP8 of NVIDIA's ModelOpt: like others', a scale per tensor or per output."""
    inner = section.section("quantization") if "quantization" in section else section
    found = inner.get("quant_algo", str, "none")
    if found not in _MODELOPT:
        _refuse(section, f"quant_algo {found}; supported: {', '.join(_MODELOPT)}", _DENSE)
    return StoredWeights("fp8", (((_LINEAR,), Scheme("float", 8)),))


def _auto_round(section: ConfigFields) -> StoredWeights:
    """Intel's AutoRound, which packs as AutoGPTQ, as GPTQModel or as AutoAWQ."""
    form = section.get("packing_format", str, section.get("backend", str, "auto_round:auto_gptq"))
    if form not in _AUTO_ROUND:
        _refuse(section, f"packing_format {form}; supported: {', '.join(_AUTO_ROUND)}")
    if section.get("act_bits", int, 16) < 16:
        _refuse(section, "act_bits below 16: activations that are rounded so are not computed")
    kind, bits = section.get("data_type", str, "int"), section.get("bits", int, 4)
    if kind != "int":
        _refuse(section, f"data_type {kind}; supported: int")
    if "rotation_config" in section:
        _refuse(section, "rotation_config", _DENSE)
    given = {"bits": bits, "group_size": section.get("group_size", int, 128), "data_type": kind}
    for name in section.section("extra_config").values:
        own = {**given, **section.section("extra_config").section(name).values}
        floats = type(own["bits"]) is int and own["bits"] >= 16  # those have no codes
        if not floats and any(own[field] != value for field, value in given.items()):
            _refuse(section, f"extra_config ({name}): projections that differ are not read")
    more = ConfigFields({"bits": bits, "group_size": given["group_size"]}, section.source)
    if form == "auto_round:auto_awq":
        return _awq(more)
    return replace(_gptq(more), zero_offset=_AUTO_ROUND[form])


def _gptq(section: ConfigFields) -> StoredWeights:
    bits = section.get("bits", int, 4)
    form = section.get("checkpoint_format", str, section.get("format", str, "gptq"))
    if section.get("is_marlin_format", bool, False):
        form = "marlin"
    if bits not in (2, 4, 8):
        _refuse(section, f"{bits} bits; supported: 2, 4, 8")
    if form not in ("gptq", "gptq_v2"):
        _refuse(section, f"checkpoint_format {form}; supported: gptq, gptq_v2")
    if section.get("lm_head", bool, False):
        _refuse(section, "lm_head true: a rounded head is not read")
    changed = [name for name in section.get("dynamic", dict, {}) if not name.startswith("-:")]
    if changed:
        _refuse(section, f"dynamic ({changed[0]}): projections that differ are not read")
    scheme = Scheme("packed", bits, _group(section, "group_size"), symmetric=False)
    return StoredWeights(
        "gptq",
        (((_LINEAR,), scheme),),
        zero_offset=int(form == "gptq"),
        ordered=section.get("desc_act", bool, False) and scheme.group is not None,
    )


def _awq(section: ConfigFields) -> StoredWeights:
    bits = section.get("bits", int, section.get("w_bit", int, 4))
    version = section.get("version", str, "gemm").lower()
    if bits != 4:
        _refuse(section, f"{bits} bits; supported: 4")
    if version != "gemm":
        _refuse(section, f"version {version}; supported: gemm")
    group = _group(section, "group_size", "q_group_size")
    return StoredWeights("awq", (((_LINEAR,), Scheme("packed", 4, group, symmetric=False)),))


def _bitsandbytes(section: ConfigFields) -> StoredWeights:
    if section.get("load_in_4bit", bool, section.get("_load_in_4bit", bool, False)):
        scheme = Scheme("codebook", 4)
    elif section.get("load_in_8bit", bool, section.get("_load_in_8bit", bool, False)):
        scheme = Scheme("int", 8)
    else:
        _refuse(section, "neither load_in_4bit nor load_in_8bit")
    return StoredWeights("bitsandbytes", (((_LINEAR,), scheme),))


def _compressed_tensors(section: ConfigFields) -> StoredWeights:
    return read_groups(section, read_scheme)


def read_groups(
    section: ConfigFields, read: Callable[[ConfigFields, str], Scheme]
) -> StoredWeights:
    """What compressed-tensors says; ``read``: the scheme of a group in some format."""
    status = section.get("quantization_status", str, "compressed")
    if status not in _WRITTEN:
        _refuse(section, f"quantization_status {status}; supported: {', '.join(_WRITTEN)}")
    for name in ("sparsity_config", "transform_config"):
        inner = section.section(name)
        if inner.values and inner.get("format", str, "") != "dense":
            _refuse(section, f"{name} {inner.get('format', str, '')}".rstrip(), _DENSE)
    groups = section.section("config_groups")
    if not groups.values:
        raise section.wrong("config_groups", "an object with a group or more")
    form = section.get("format", str, "")
    schemes = []
    for name in groups.values:
        group = groups.section(name)
        targets = names_in(group, "targets")
        schemes.append((targets, read(group, group.get("format", str, form))))
    return StoredWeights("compressed-tensors", tuple(schemes), names_in(section, "ignore"))


def names_in(section: ConfigFields, name: str) -> tuple[str, ...]:
    """A list of modules' names, or of patterns. ModelError: it is none."""
    names = section.get(name, list, [])
    for text in names:
        if not isinstance(text, str):
            raise section.wrong(name, "a list of names")
        if text.startswith("re:") and not is_quick(text[3:]):
            raise section.wrong(name, "a list of short regular expressions", text)
    return tuple(names)


def is_quick(pattern: str) -> bool:
    """Whether it is a pattern, and no name can keep it busy: others have written it."""
    repeats = re.findall(r"[*+{]", pattern)
    if len(repeats) > _MOST_REPEATS or re.search(r"\)[*+{]", pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


_WRITTEN = ("compressed", "frozen")  # the latter by older writers; tensors tell what they are
_MODELOPT = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
# And what is taken off zeros before they are stored.
_AUTO_ROUND = {
    "auto_round:auto_gptq": 1,
    "auto_round:gptq:exllamav2": 1,
    "auto_round:gptqmodel": 0,
    "auto_round": 0,
    "auto_round:auto_awq": 0,
}
_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized", "float-quantized")


def read_scheme(group: ConfigFields, form: str) -> Scheme:
    """The scheme of a group of compressed-tensors. ModelError: it is not read."""
    weights, rows = group.section("weights"), group.section("input_activations")
    kind = weights.choice("type", ("int", "float"), "int")
    bits = weights.get("num_bits", int, 8)
    if form not in _FORMATS:
        _refuse(group, f"format {form}; supported: {', '.join(_FORMATS)}", _DENSE)
    packed = form == "pack-quantized"
    if (kind == "float" and bits != 8) or bits not in ((2, 4, 8) if packed else range(2, 9)):
        _refuse(group, f"{kind} weights of {bits} bits; supported: int 2, 4 and 8, float 8")
    if group.section("output_activations").values:
        _refuse(group, "output_activations, which are not rounded here")
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "block"), "tensor")
    return Scheme(
        kind="packed" if packed else "int" if kind == "int" else "float",
        bits=bits,
        group=_group(weights, "group_size") if strategy == "group" else None,
        block=_block(weights, "block_structure") if strategy == "block" else None,
        symmetric=weights.get("symmetric", bool, True),
        rounds_rows=kind == "int" and _by_token(rows),
    )


def _by_token(rows: ConfigFields) -> bool:
    """Whether activations are rounded as ``w8a8`` does; in any other way they are left alone."""
    return (
        rows.get("type", str, "int") == "int"
        and rows.get("num_bits", int, 0) == 8
        and rows.get("strategy", str, "") == "token"
        and rows.values.get("dynamic") is True
        and rows.get("symmetric", bool, True)
    )


_READERS: Mapping[str, Callable[[ConfigFields], StoredWeights]] = {
    "auto-round": _auto_round,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
