"""Rotary position embeddings (Su et al., 2021) and the ways to stretch them.

Pairs of dimensions (i, i + rotated / 2) of queries and keys are turned by position * frequency_i.
The frequencies follow ``transformers.modeling_rope_utils``, checkpoint for checkpoint.

Type "dynamic" has frequencies that depend on how long the sequence is. A token at position p of a
sequence whose prompt has P tokens is turned as in a sequence of length max(P, p + 1): what a prompt
in one pass and then one token at a time gives, however the steps were in fact batched, chunked, or
repeated after a preemption.

Type "longrope" has two sets of frequencies, and one of them is chosen for all sequences when the
model is loaded, by the longest that is served, as vLLM and llama.cpp do it. transformers changes
over in the middle of a sequence, whose keys are then of either set.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from reprlib import repr as short

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.kernels.ops import AttentionBatch, Rotation
from quire.models.config import ConfigFields

_LOG = logging.getLogger(__name__)
_CPU = torch.device("cpu")
_WIDEST = 2**16  # dimensions of a head; published ones have at most some hundreds
_LARGEST_DIVISOR = 2e30  # of what is not to be turned, files have 1e30
_PROPORTIONAL = "proportional"
_GROWTH = "llama_4_scaling_beta"
UNTURNED = "unturned"
"""A kind of our own: heads are not turned, but queries may grow with their positions."""

# Frequencies, [rotated / 2] or [T, rotated / 2] given the length [T] that each token lives in.
_Frequencies = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rope:
    """A checkpoint's rotary embedding.

    The angles of a step are computed as it comes: a few thousand cosines beside billions of
    products, and no table of ``max_positions`` rows to keep.
    """

    frequencies: _Frequencies
    attention_factor: float  # scales cosines and sines
    stable_length: int | None  # frequencies change in longer sequences; None: they never do
    # Where sequences longer than the first are served, all of them have these frequencies and this
    # attention factor instead.
    longer: tuple[int, Tensor, float] | None = None
    reach: int | None = None  # attention sinks seem less far away than this; None: no sinks
    # Queries grow by the first times log(1 + whole multiples of the second before them, with the
    # third added to their positions), as Llama 4's without positions do.
    growth: tuple[float, int, int] | None = None

    def serving(self, longest: int) -> Rope:
        """The rotation if no sequence is longer, and no more positions are told apart than
        ``longest``.
        """
        if self.longer is None:
            return self
        original, frequencies, factor = self.longer
        beyond = longest > original
        _LOG.info(
            "longrope: the %s factors turn all texts, since up to %s tokens are served and the "
            "model's original length is %s; max_model_len decides that",
            *("long" if beyond else "short", f"{longest:,}", f"{original:,}"),
        )
        if not beyond:
            return replace(self, longer=None)
        return replace(self, frequencies=frequencies, attention_factor=factor, longer=None)

    def rotation(self, batch: AttentionBatch) -> Rotation:
        """The rotation of each new token."""
        positions, scale = batch.positions, self._query_scale(batch.positions)
        if self.reach is not None:
            sink_positions = positions.clamp(max=self.reach - 1)
            turns = *self._exact_turns(positions), *self._exact_turns(sink_positions)
            return Rotation(*turns, query_scale=scale)
        if isinstance(self.frequencies, Tensor):
            frequencies = self.frequencies
        else:
            starts = batch.output_starts.repeat_interleave(
                batch.starts.diff(), output_size=len(positions)
            )
            frequencies = self.frequencies(torch.maximum(starts, positions + 1))
        angles = positions[:, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return Rotation(cos, sin, query_scale=scale)

    def _query_scale(self, positions: Tensor) -> Tensor | None:
        if self.growth is None:
            return None
        beta, length, ahead = self.growth
        return 1 + beta * (1 + (positions + ahead) // length).float().log()

    def _exact_turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines from float64: float32 cannot hold the angles of far positions."""
        assert isinstance(self.frequencies, Tensor)
        angles = positions[:, None].double() * self.frequencies.to(positions.device)
        cos, sin = angles.cos(), angles.sin()
        return (cos * self.attention_factor).float(), (sin * self.attention_factor).float()


@dataclass(frozen=True)
class RopeConfig:
    """The fields of a config that shape its rotary embedding."""

    kind: str
    theta: float
    rotated: int  # dimensions of a head that are turned, the first ones
    max_position_embeddings: int
    original_positions: int  # length of the sequences before stretching
    fields: ConfigFields  # the parameters of ``kind``
    backwards: bool = False  # heads are turned the other way

    @classmethod
    def read(
        cls,
        fields: ConfigFields,
        head_dim: int,
        theta: float = 10_000.0,
        share: float = 1.0,
        layers: str | None = None,
    ) -> RopeConfig:
        """Read either spelling: ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``.

        theta, share: where they are absent.
        layers: which kind of layers, where ``rope_parameters`` has a section for each.
        """
        name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
        rope = fields.section(name)
        if layers is not None and name == "rope_parameters":
            rope = rope.section(layers)
        kind = rope.get("rope_type", str, rope.get("type", str, "default"))
        positions = fields.positive("max_position_embeddings")
        share = rope.get(
            "partial_rotary_factor", float, fields.get("partial_rotary_factor", float, share)
        )
        if not 0 < share <= 1:
            raise ModelError(f"{rope.source}: partial_rotary_factor must be above 0 and at most 1")
        original = rope.positive("original_max_position_embeddings", positions)
        theta = rope.get("rope_theta", float, fields.get("rope_theta", float, theta))
        if theta <= 0:
            raise ModelError(f"{rope.source}: rope_theta must be above 0, but is {theta}")
        return cls(
            kind=kind,
            theta=theta,
            rotated=head_dim if kind == _PROPORTIONAL else int(head_dim * share),
            max_position_embeddings=positions,
            # Phi-3 keeps it beside the parameters, where it takes precedence.
            original_positions=fields.positive("original_max_position_embeddings", original),
            fields=rope,
        )

    def build(self, device: torch.device = _CPU) -> Rope:
        """The embedding, for batches on ``device``.

        Raises:
            ModelError: ``rope_type`` is unknown, or one of its parameters is missing.
        """
        if self.kind not in _BUILDERS:
            names = ", ".join(sorted(_BUILDERS))
            raise ModelError(
                f"{self.fields.source}: rope_type is {short(self.kind)}; supported: {names}"
            )
        if self.kind != UNTURNED and (not 2 <= self.rotated <= _WIDEST or self.rotated % 2):
            raise ModelError(f"{self.fields.source}: {self.rotated} dimensions cannot be rotated")
        try:
            rope = _BUILDERS[self.kind](self, device)
            if _GROWTH in self.fields:
                beta = self.fields.get(_GROWTH, float)
                rope = replace(rope, growth=(beta, self.original_positions, 0))
            if self.backwards and isinstance(rope.frequencies, Tensor):
                rope = replace(rope, frequencies=-rope.frequencies)
            return rope
        except (ArithmeticError, ValueError) as error:  # of parameters out of their range
            raise ModelError(f"{self.fields.source}: no rotation can be made: {error}") from error


def _exponents(rotated: int) -> Tensor:
    return torch.arange(0, rotated, 2, dtype=torch.float32) / rotated


def _factor(fields: ConfigFields) -> float:
    factor = fields.get("factor", float)
    if factor <= 0:
        raise ModelError(f"{fields.source}: factor must be above 0, but is {factor}")
    return factor


def _default(config: RopeConfig, device: torch.device) -> Rope:
    return Rope((1.0 / config.theta ** _exponents(config.rotated)).to(device), 1.0, None)


def _proportional(config: RopeConfig, device: torch.device) -> Rope:
    """All of a head is turned in pairs, of which only the share that turns fastest moves."""
    fields, rotated = config.fields, config.rotated
    share = fields.get("partial_rotary_factor", float, 1.0)
    frequencies = 1.0 / config.theta ** _exponents(rotated)
    frequencies[int(share * rotated // 2) :] = 0
    factor = _factor(fields) if "factor" in fields else 1.0
    return Rope((frequencies / factor).to(device), 1.0, None)


def _linear(config: RopeConfig, device: torch.device) -> Rope:
    frequencies = 1.0 / config.theta ** _exponents(config.rotated)
    return Rope((frequencies / _factor(config.fields)).to(device), 1.0, None)


def _llama3(config: RopeConfig, device: torch.device) -> Rope:
    """Long wavelengths are stretched, short ones are not, those between are blended."""
    factor = _factor(config.fields)
    low = config.fields.get("low_freq_factor", float)
    high = config.fields.get("high_freq_factor", float)
    frequencies = 1.0 / config.theta ** _exponents(config.rotated)
    turns = config.original_positions * frequencies / (2 * math.pi)  # in the original length
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    return Rope(blended.to(device), 1.0, None)


def _dynamic(config: RopeConfig, device: torch.device) -> Rope:
    """NTK-aware: the base grows once a sequence exceeds the original length."""
    factor = _factor(config.fields)
    original = config.max_position_embeddings
    exponents = _exponents(config.rotated).to(device)
    power = config.rotated / (config.rotated - 2)

    def frequencies(lengths: Tensor) -> Tensor:
        stretch = factor * lengths.clamp(min=original) / original - (factor - 1)
        return 1.0 / (config.theta * stretch**power)[:, None] ** exponents

    return Rope(frequencies, 1.0, original)


def _yarn(config: RopeConfig, device: torch.device) -> Rope:
    """Peng et al., 2023: dimensions that turn often stay, those that turn rarely are stretched."""
    fields, rotated = config.fields, config.rotated
    factor = _factor(fields)

    def dimension(turns: float) -> float:
        """The dimension that turns this many times within the original length."""
        ratio = config.original_positions / (turns * 2 * math.pi)
        return rotated * math.log(ratio) / (2 * math.log(config.theta))

    low = dimension(fields.get("beta_fast", float, 32.0))
    high = dimension(fields.get("beta_slow", float, 1.0))
    if fields.get("truncate", bool, True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    span = high - low or 0.001
    stretched = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    frequencies = 1.0 / config.theta ** _exponents(rotated)
    frequencies = frequencies / factor * stretched + frequencies * (1 - stretched)
    return Rope(frequencies.to(device), _yarn_attention_factor(fields, factor), None)


def _yarn_attention_factor(fields: ConfigFields, factor: float) -> float:
    if "attention_factor" in fields:
        return fields.get("attention_factor", float)

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale = fields.get("mscale", float, 0.0)
    mscale_all = fields.get("mscale_all_dim", float, 0.0)
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)


def _longrope(config: RopeConfig, device: torch.device) -> Rope:
    """Ding et al., 2024 (Phi-3): divisors for texts up to the original length, or for longer."""
    fields, original = config.fields, config.original_positions
    base = config.theta ** _exponents(config.rotated)
    short, long = (
        (1.0 / (_divisors(fields, name, config.rotated // 2) * base)).to(device)
        for name in ("short_factor", "long_factor")
    )
    factor = fields.get("factor", float, config.max_position_embeddings / original)
    attention_factor = fields.get(
        "attention_factor",
        float,
        math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0,
    )
    of_short, of_long = (  # as Phi-3.5-MoE has them
        fields.get(name, float, attention_factor) for name in ("short_mscale", "long_mscale")
    )
    return Rope(short, of_short, None, longer=(original, long, of_long))


def _unturned(config: RopeConfig, device: torch.device) -> Rope:
    fields = config.fields
    growth = fields.get("attn_scale", float, 0.1), fields.positive("floor_scale", 8192), 1
    return Rope(torch.empty(0, device=device), 1.0, None, growth=growth)


def _divided(config: RopeConfig, device: torch.device) -> Rope:
    """Frequencies with a divisor each, as GGUF files have them."""
    divisors = _divisors(config.fields, "divisors", config.rotated // 2)
    frequencies = 1.0 / (divisors * config.theta ** _exponents(config.rotated))
    return Rope(frequencies.to(device), 1.0, None)


def _divisors(fields: ConfigFields, name: str, count: int) -> Tensor:
    divisors = fields.get(name, list)
    if len(divisors) != count or not all(_is_divisor(x) for x in divisors):
        raise ModelError(
            f"{fields.source}: {name} must be {count} numbers, but is {short(divisors)}"
        )
    return torch.tensor(divisors, dtype=torch.float32)


def _is_divisor(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < _LARGEST_DIVISOR


_BUILDERS: dict[str, Callable[[RopeConfig, torch.device], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    _PROPORTIONAL: _proportional,
    "yarn": _yarn,
    "longrope": _longrope,
    "divided": _divided,
    UNTURNED: _unturned,
    "deepseek_yarn": _yarn,  # in Sarvam's files
    "su": _longrope,  # its name when Phi-3 was published
    "mrope": _default,  # a text's tokens have the same position three times
}
