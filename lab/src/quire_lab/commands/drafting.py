"""Flags of simulated speculation: what drafts, and how often drafts are accepted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import ConfigError, ModelError
from quire.engine.capacity import size_of
from quire.models.demo import DEMO_DRAFT
from quire.models.shape import ModelShape, read_shape
from quire_lab.simulation import AcceptanceProfile, SimulatedDrafting
from quire_lab.simulation.calibrated import Calibration
from quire_lab.simulation.drafting import SmallerModel

_DEMO = "quire-demo"
_PADDING = 512  # tokens by which embeddings of one vocabulary differ from model to model

Named = Callable[[str, str | None], ModelShape]
"""A name and a quantization -> the model, in the types that were asked for."""


def add_acceptance(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--acceptance", metavar="RATES", help="acceptance rate of a draft after accepted ones: "
        "0.7, or by position 0.8,0.6,0.5; quire plan then compares numbers of drafts (default: as "
        "in the trace, if it was recorded with speculation)",
    )  # fmt: skip
    group.add_argument(
        "--coverage", type=float, metavar="SHARE", help="share of steps in which texts have "
        "something to draft (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--draft-acceptance", metavar="RATES", help='acceptance rate of a draft model with '
        'method auto; with method draft, --acceptance is the model\'s',
    )  # fmt: skip


def acceptance_of(arguments: argparse.Namespace) -> AcceptanceProfile | None:
    """The acceptance rates that the flags give; None: none."""
    rates, coverage = arguments.acceptance, arguments.coverage
    if rates is None:
        if coverage is not None:
            raise ConfigError("coverage does nothing without acceptance: give --acceptance too")
        return None
    return AcceptanceProfile.parse(rates, 1.0 if coverage is None else coverage)


def drafting_of(
    arguments: argparse.Namespace,
    speculation: SpeculativeConfig | None,
    target: ModelShape,
    named: Named,
    calibration: Calibration | None,
) -> SimulatedDrafting | None:
    """The drafting that the flags give; None: none. ConfigError, ModelError: it cannot draft for
    ``target``.
    """
    rates, acceptance = arguments.draft_acceptance, acceptance_of(arguments)
    both = speculation is not None and speculation.method == "auto" and speculation.model
    if rates is not None and not both:
        raise ConfigError(
            'draft_acceptance is for a draft model beside texts, {"method": "auto", "model": …}; '
            "with method draft give --acceptance"
        )
    if speculation is None:
        return None
    if both and (rates is None or acceptance is None):
        raise ConfigError(
            "give --acceptance, of what texts tell, and --draft-acceptance, of the draft model's: "
            "a trace does not say whose drafts were right"
        )
    model = None
    if speculation.has_draft_model:
        if arguments.coverage is not None and not both:
            raise ConfigError("coverage does nothing with method draft: a model always drafts")
        shape = _shape(speculation, target, named)
        model = SmallerModel(
            shape,
            None if rates is None else AcceptanceProfile.parse(rates),
            None if calibration is None else calibration.draft_costs(shape),
        )
    most = speculation.num_speculative_tokens
    return SimulatedDrafting(speculation.method, most, acceptance, model=model)


def _shape(speculation: SpeculativeConfig, target: ModelShape, named: Named) -> ModelShape:
    """The draft model's shape. An error if it cannot draft for the model."""
    name = speculation.model or f"{_DEMO}'s draft"
    if speculation.revision is not None:
        raise ConfigError("speculative_config: revision does nothing in a simulation; leave it out")
    if speculation.model is None and target.name != _DEMO:
        raise ConfigError(
            'speculative_config: method "draft" needs a model: {"method": "draft", "model": …}; '
            "only the demonstration model brings one"
        )
    try:
        if speculation.model is None:
            shape = read_shape(DEMO_DRAFT)
            shape = replace(shape.of_dtype(target.dtype), name=name, kv_dtype=target.kv_dtype)
        else:
            shape = named(speculation.model, speculation.quantization)
    except (ConfigError, ModelError) as error:
        raise type(error)(f"speculative_config: model {name}: {error}") from error
    if abs(shape.vocab_size - target.vocab_size) > _PADDING:
        raise ConfigError(
            f"speculative_config: model {name}: it has {shape.vocab_size:,} tokens where the model "
            f"that it drafts for has {target.vocab_size:,}: choose one of the same family"
        )
    if shape.weight_bytes >= target.weight_bytes:
        raise ConfigError(
            f"speculative_config: model {name}: its weights take {size_of(shape.weight_bytes)}, "
            f"those of the model it drafts for {size_of(target.weight_bytes)}: choose a smaller "
            "one, a tenth is usual"
        )
    return shape
