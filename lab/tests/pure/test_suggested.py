"""The models that ``quire serve`` suggests are those of the catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.models.shape import ModelShape
from quire.tools.commands.fitting import SUGGESTED
from quire_lab.simulation.catalogue.models import find_known


@pytest.mark.parametrize("shape", SUGGESTED, ids=lambda shape: shape.name)
def test_a_suggested_model_has_its_published_shape(shape: ModelShape) -> None:
    known = find_known(shape.name)
    assert known is not None
    found = replace(known, name=shape.name, notes=(), position_limit=None)
    assert found == replace(shape, position_limit=None)
