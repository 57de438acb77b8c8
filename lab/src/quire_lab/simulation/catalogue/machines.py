"""Machines by the figures on which a step's time depends: by name, or from a file.

The catalogue is a list of such files' objects (``machines.json``), each with its sources.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, ModelError
from quire.models.files import read_json, read_object

GB = 10**9
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """One accelerator, or a CPU box. Bytes, and bytes or operations per second.

    memory: what the driver reports, which is less than the name says.
    flops: dense, in 16 bits with 32-bit sums; flops_int8, flops_fp8, flops_fp4: of those types,
        None where there are no units for them.
    host_bandwidth: one way, over which blocks are swapped.
    link_bandwidth: one way, to the others of its node; network_bandwidth: to those of other nodes.
    per_node: machines that the faster links join.
    compute_share, bandwidth_share: what large matrix products and long reads attain of the peaks.
    step_seconds: a step's fixed cost: launches, scheduling, sampling.
    narrow_share: what products of 8 and 4 bits attain of their peaks, of what those of 16 bits do.
    launch_seconds: that the host takes to launch a layer's kernels in a step with prompts; the
        machine computes meanwhile.
    recorded_tokens: of the largest step with prompts whose kernels are recorded, all of a layer but
        its attention. piece_seconds: that the host takes for a layer there.
    block_tokens: what finding a block of keys costs, in tokens that could be read meanwhile.
    is_cpu: others use its memory too, so that a pool takes less of it by default. is_tpu: neither
        Quire nor engines of GPUs compute there.
    price_per_hour: the user's; Quire knows no prices.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    host_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float = 12.5 * GB
    per_node: int = 8
    flops_int8: float | None = None
    flops_fp8: float | None = None
    flops_fp4: float | None = None
    compute_share: float = 0.6
    bandwidth_share: float = 0.8
    narrow_share: float = 1.0
    step_seconds: float = 0.003
    launch_seconds: float = 0.0
    piece_seconds: float = 0.0
    recorded_tokens: int = 0
    block_tokens: float = 0.0
    is_cpu: bool = False
    is_tpu: bool = False
    watts: float | None = None
    price_per_hour: float | None = None

    @property
    def kind(self) -> str:
        return "cpu" if self.is_cpu else "tpu" if self.is_tpu else "gpu"

    def has_units(self, products: str) -> bool:
        """Whether it multiplies a type faster than 16 bits."""
        return self.peak(products) > self.flops

    @property
    def forms(self) -> tuple[str, ...]:
        """The roundings of weights that engines have there, and that nothing speaks against: Quire
        on CPUs; on GPUs others, which keep 4 or 8 bits and multiply in the types of their units.
        """
        if self.is_cpu:
            return ("int8", "int4", "w8a8", "w4a8") if self.flops_int8 else ("int8", "int4")
        units = (("w8a8", "int8"), ("fp8", "fp8"), ("nvfp4", "fp4"))
        own = tuple(form for form, products in units if self.has_units(products))
        return own if self.is_tpu else ("int8", "int4", *own)

    def is_like(self, other: Machine) -> bool:
        """Whether the same engines compute on both."""
        return self.kind == other.kind

    def peak(self, products: str) -> float:
        """Operations per second in matrix products of a type: int8, fp8, fp4, or of 16 bits.

        Where there are no units for it, weights are widened first.
        """
        peaks = {"int8": self.flops_int8, "fp8": self.flops_fp8, "fp4": self.flops_fp4}
        return peaks.get(products) or self.flops


_SCALES: Mapping[str, tuple[str, float]] = {
    "memory_gib": ("memory", GIB),
    "memory_gb": ("memory", GB),
    "tflops": ("flops", 1e12),
    "bandwidth_gb": ("bandwidth", GB),
    "host_gb": ("host_bandwidth", GB),
    "link_gb": ("link_bandwidth", GB),
    "network_gb": ("network_bandwidth", GB),
    "tops_int8": ("flops_int8", 1e12),
    "tflops_fp8": ("flops_fp8", 1e12),
    "tflops_fp4": ("flops_fp4", 1e12),
    "compute_share": ("compute_share", 1),
    "bandwidth_share": ("bandwidth_share", 1),
    "step_ms": ("step_seconds", 1e-3),
    "launch_us": ("launch_seconds", 1e-6),
    "block_tokens": ("block_tokens", 1),
    "watts": ("watts", 1),
    "price_per_hour": ("price_per_hour", 1),
}
"""A file's numbers by name: the field of ``Machine`` that each is, and its unit."""

_NEEDED = ("tflops", "bandwidth_gb")
_OTHERS = ("name", "per_node", "is_cpu", "is_tpu", "sources")


def machine_of(values: Mapping[str, Any], source: str) -> Machine:
    """The machine that an object describes. ConfigError: what is missing, unknown or no figure."""
    known = (*_OTHERS, *_SCALES)
    for name in values:
        if name not in known:
            raise ConfigError(f"{source}: unknown key {name!r:.80}; known: {', '.join(known)}")
    for name in _NEEDED:
        if name not in values:
            raise ConfigError(f"{source}: {name} is missing")
    if ("memory_gib" in values) == ("memory_gb" in values):
        raise ConfigError(f"{source}: give one of memory_gib (2**30 bytes) and memory_gb (10**9)")
    fields: dict[str, Any] = {
        field: _number(values, name, source) * unit
        for name, (field, unit) in _SCALES.items()
        if name in values
    }
    for name in ("compute_share", "bandwidth_share"):
        if fields.get(name, 0.5) > 1:
            raise ConfigError(f"{source}: {name} must be at most 1, got {fields[name]:g}")
    fields["memory"] = int(fields["memory"])
    host = fields.setdefault("host_bandwidth", 25 * GB)
    fields.setdefault("link_bandwidth", host)  # over the same bus
    for name, kind in (("per_node", int), ("is_cpu", bool), ("is_tpu", bool)):
        value = values.get(name, getattr(Machine, name))
        if type(value) is not kind or (kind is int and value < 1):
            wanted = "a whole number above 0" if kind is int else "true or false"
            raise ConfigError(f"{source}: {name} must be {wanted}, got {value!r:.80}")
        fields[name] = value
    label = values.get("name", Path(source).stem)
    if not isinstance(label, str) or not label.isprintable():
        raise ConfigError(f"{source}: name must be a text, got {label!r:.80}")
    return Machine(name=label, **fields)


def _number(values: Mapping[str, Any], name: str, source: str) -> float:
    value = values[name]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= 1e9:
        raise ConfigError(f"{source}: {name} must be a number above 0, got {value!r:.80}")
    return float(value)


MACHINES: Mapping[str, Machine] = {
    values["name"]: machine_of(values, values["name"])
    for values in read_json(Path(__file__).with_name("machines.json"))
}


def find_machine(name: str) -> Machine:
    """A machine of the catalogue, or the one that a JSON file describes.

    Raises:
        ConfigError: there is neither, with the names that come near; or the file is wrong.
    """
    machine = MACHINES.get(name.lower())
    if machine is not None:
        return machine
    if name.endswith(".json") or Path(name).is_file():
        try:
            return machine_of(read_object(Path(name)), name)
        except ModelError as error:  # of a file that is none
            raise ConfigError(str(error)) from error
    begins = [known for known in MACHINES if known.startswith(name.lower())]
    close = begins or difflib.get_close_matches(name.lower(), MACHINES, n=1)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"unknown machine {name!r}; {hint}known: {', '.join(MACHINES)}, or a JSON file"
    )
