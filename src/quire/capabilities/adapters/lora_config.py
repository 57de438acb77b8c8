"""adapter_config.json: what an adapter is, as far as its tensors do not tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ModelError, cut, shown
from quire.models.files import read_object

CONFIG = "adapter_config.json"
FOLD = "fold the adapter into its base (merge_and_unload) and serve the result as a model"

# Fields that have a say only in training, or that the tensors tell better.
_OF_TRAINING = {
    *("alpha_pattern", "arrow_config", "auto_mapping", "base_model_name_or_path", "bias"),
    *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha"),
    *("lora_dropout", "megatron_config", "megatron_core", "modules_to_save", "peft_type"),
    *("peft_version",),
    *("qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules"),
    *("task_type", "use_dora", "use_rslora", "velora_config"),
}
_NEVER_FOLDED = ("alora_invocation_tokens", "use_qalora")
# Ways to begin a training that change the base's own weights.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_REPEATED = re.compile(r"\)[*+?{]")  # of groups, which take for ever on some names
_MOST_REPEATS, _LONGEST_PATTERN = 2, 256


@dataclass(frozen=True)
class LoraConfig:
    """How the matrices of one adapter are to be multiplied."""

    source: Path
    rank: int
    alpha: float
    use_dora: bool  # magnitudes of outputs are learned by themselves (Liu et al., 2024)
    rank_stabilised: bool  # rsLoRA: alpha / sqrt(rank) (Kalajdzievski, 2023)
    ranks: Mapping[re.Pattern[str], float]  # of modules whose names end so
    alphas: Mapping[re.Pattern[str], float]
    targets: tuple[str, ...] | None  # ends of modules' names; None: the tensors tell
    layers: frozenset[int] | None  # None: all
    saved: tuple[str, ...]  # modules that are in the file whole
    keeps_tied: bool  # the base's embedding and head stay one

    @classmethod
    def read(cls, directory: Path) -> LoraConfig:
        """ModelError: it is no LoRA, or one of a kind that is not supported."""
        source = directory / CONFIG
        fields = read_object(source)
        _refuse_other_kinds(source, fields)
        rank = _number(source, fields, "r", 8)
        if rank < 1 or rank != int(rank):
            raise ModelError(f"{source}: r must be an integer of at least 1, got {rank!r}")
        return cls(
            source=source,
            rank=int(rank),
            alpha=_number(source, fields, "lora_alpha", 8),
            use_dora=fields.get("use_dora") is True,
            rank_stabilised=fields.get("use_rslora") is True,
            ranks=_patterns(source, fields, "rank_pattern"),
            alphas=_patterns(source, fields, "alpha_pattern"),
            targets=_targets(source, fields.get("target_modules")),
            layers=_layers(source, fields.get("layers_to_transform")),
            saved=_saved(source, fields.get("modules_to_save") or []),
            keeps_tied=fields.get("ensure_weight_tying") is True,
        )

    def scale(self, module: str, rank: int) -> float:
        """The factor of the product of a module's matrices.

        ModelError: the config gives the module another rank, or does not list it.
        """
        said = _found(self.ranks, module, self.rank)
        if rank != said:
            raise ModelError(f"{self.source}: {module} has rank {said:g}, but its tensors {rank}")
        if self.targets is not None and not any(
            module == target or module.endswith(f".{target}") for target in self.targets
        ):
            raise ModelError(f"{self.source}: target_modules does not name {module}")
        layer = re.search(r"\.(\d+)\.", module)
        if self.layers is not None and (layer is None or int(layer[1]) not in self.layers):
            raise ModelError(f"{self.source}: layers_to_transform leaves out {module}")
        alpha = _found(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rank_stabilised else alpha / rank


def _refuse_other_kinds(source: Path, fields: Mapping[str, Any]) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{source}: peft_type is {shown(kind)}; supported: LORA")
    if fields.get("bias", "none") != "none":
        raise ModelError(f"{source}: bias is {shown(fields['bias'])}; supported: none; or {FOLD}")
    begun = str(fields.get("init_lora_weights", True)).lower()
    if begun.startswith(_CHANGE_THE_BASE):
        raise ModelError(
            f"{source}: init_lora_weights {shown(begun)} changes the base's own weights; convert "
            "the adapter to plain LoRA (save_pretrained with "
            "path_initial_model_for_weight_conversion)"
        )
    for name in sorted(fields):
        if fields[name] and name not in _OF_TRAINING:
            advice = "" if name in _NEVER_FOLDED else f"; {FOLD}"
            raise ModelError(f"{source}: {cut(name)} is not computed here{advice}")


def _number(source: Path, fields: Mapping[str, Any], name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**31:
        raise ModelError(f"{source}: {name} must be a number, got {value!r:.100}")
    if not math.isfinite(value):
        raise ModelError(f"{source}: {name} must be a number, got {value!r}")
    return value


def _patterns(
    source: Path, fields: Mapping[str, Any], name: str
) -> Mapping[re.Pattern[str], float]:
    """Numbers by pattern: regular expressions for the ends of modules' names, of bounded cost."""
    given = fields.get(name) or {}
    if not isinstance(given, dict):
        raise ModelError(f"{source}: {name} must be an object")
    found = {}
    for pattern in given:
        repeats = len(re.findall(r"[*+?{]", pattern))
        if len(pattern) > _LONGEST_PATTERN or repeats > _MOST_REPEATS or _REPEATED.search(pattern):
            raise ModelError(
                f"{source}: {name} holds a pattern that may take for ever: {pattern:.100}"
            )
        try:
            compiled = re.compile(rf"(?:.*\.)?(?:{pattern})")
        except (re.error, RecursionError) as error:
            raise ModelError(f"{source}: {name} holds no regular expression: {error}") from None
        found[compiled] = _number(source, given, pattern, 0)
    return found


def _found(values: Mapping[re.Pattern[str], float], module: str, default: float) -> float:
    """The value of the first pattern that fits, as in PEFT."""
    return next((value for fits, value in values.items() if fits.fullmatch(module)), default)


def _targets(source: Path, given: object) -> tuple[str, ...] | None:
    if given is None or isinstance(given, str):  # a regular expression, or "all-linear"
        return None
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise ModelError(f"{source}: target_modules must be a text or a list of texts")


def _saved(source: Path, given: object) -> tuple[str, ...]:
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise ModelError(f"{source}: modules_to_save must be a list of texts")


def _layers(source: Path, given: object) -> frozenset[int] | None:
    if given is None:
        return None
    layers = given if isinstance(given, list) else [given]
    if not all(isinstance(one, int) for one in layers):
        raise ModelError(f"{source}: layers_to_transform must be a number or a list of numbers")
    return frozenset(layers)
