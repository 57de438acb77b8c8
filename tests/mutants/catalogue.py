"""All mutants, by wing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mutants import (
    blocks,
    capabilities,
    cluster,
    core,
    engine,
    execution,
    http,
    lab,
    models,
    text,
)
from mutants.mutant import Mutant

WINGS: Mapping[str, Sequence[Mutant]] = {
    "core": core.MUTANTS,
    "capabilities": capabilities.MUTANTS,
    "text": text.MUTANTS,
    "blocks": blocks.MUTANTS,
    "engine": engine.MUTANTS,
    "execution": execution.MUTANTS,
    "http": http.MUTANTS,
    "models": models.MUTANTS,
    "quire_cluster": cluster.MUTANTS,
    "quire_lab": lab.MUTANTS,
}
