"""The law of bits: nothing changes a bit of a request but the request.

Requests in random lives of real engines against each of them alone in a fresh one: tokens and
log-probabilities, by their bits. ``python -m support.law_of_bits`` shows more of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.execution.forward import DirectForward, Hidden
from quire.execution.sampling import sampler
from quire.kernels import cpu
from support.engine_lives import LIVES, save_mixture, save_models
from support.instruction_sets import TESTED
from support.law_of_bits import FORMS, Tally, tallies

RUNS = int(os.environ.get("QUIRE_RANDOM_RUNS", "0"))  # requests of each form, on demand
ALONE_AND_BESIDE = tuple(zip(FORMS, (*LIVES, "cached", "drafts", "swap"), strict=True))
ON_OTHERS = ("float32", "bfloat16", "int8", "int4", "w8a8", "w4a8")

# What must have happened in a life for it to have shown anything.
SIGNS = {
    "cached": "found",
    "recompute": "recompute",
    "swap": "swap",
    "drafts": "drafts",
    "chunks": "chunks",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


def check(found: dict[str, Tally]) -> None:
    for kind, tally in found.items():
        assert tally.first is None, f"{kind}: {tally.bits} of {tally.requests}; {tally.first}"


@pytest.mark.parametrize(("form", "kind"), ALONE_AND_BESIDE)
def test_a_request_has_the_bits_that_it_has_alone(
    form: str, kind: str, models: dict[str, Path]
) -> None:
    kinds = LIVES if RUNS else (kind, "everything")
    check(tallies(FORMS[form], models, kinds, max(10, RUNS // len(kinds)), at_once=6))


@pytest.mark.parametrize("form", ["bfloat16", "int4", "w8a8", "w4a8", "adapters"])
def test_experts_give_them_whoever_else_chose_them(form: str, tmp_path: Path) -> None:
    models = save_mixture(tmp_path)
    check(tallies(FORMS[form], models, ("everything",), max(5, RUNS // 10), at_once=5))


@pytest.mark.parametrize("kind", SIGNS)
def test_each_life_has_in_it_what_it_is_for(kind: str, models: dict[str, Path]) -> None:
    found = tallies(FORMS["bfloat16"], models, (kind,), 10, seed=2)
    check(found)
    assert found[kind].happened[SIGNS[kind]] > 0


@pytest.mark.parametrize("form", ON_OTHERS)
@pytest.mark.parametrize("build", TESTED[1:])
def test_it_has_them_on_every_build(
    form: str, build: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "all_builds", lambda: TESTED)  # one of them is for tests only
    settings = {**FORMS[form], "cpu_isa": build}
    check(tallies(settings, models, ("everything",), max(4, RUNS // 10), at_once=4))


@pytest.mark.skipif(len(TESTED) < 2, reason="needs kernels that add in another order")
def test_an_order_of_sums_that_depends_on_the_step_is_found(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole steps of other kernels, where they have many rows."""
    forward, others = DirectForward.__call__, cpu.CPUKernels("portable")

    def planted(self: Any, batch: Any, sampled: Callable[[], Any]) -> Hidden:
        kernels = self._kernels
        if batch.header.tokens > 8:
            self._kernels = others
        try:
            return forward(self, batch, sampled)
        finally:
            self._kernels = kernels

    monkeypatch.setattr(DirectForward, "__call__", planted)
    found = tallies(FORMS["float32"], models, ("trickle",), 6)
    assert found["trickle"].bits > 0
    assert "at last" in str(found["trickle"].first)


def test_sums_over_the_vocabulary_that_depend_on_the_batch_are_found(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    block_weights = sampler._block_weights

    def planted(gaps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, sums = block_weights(gaps)
        return weights, weights.double().sum(-1) if len(gaps) > 2 else sums

    monkeypatch.setattr(sampler, "_block_weights", planted)
    found = tallies(FORMS["float32"], models, ("batched",), 6)
    assert found["batched"].bits > 0
