"""The law of bits on models that keep a latent of each token."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine_lives import save_latents
from support.law_of_bits import FORMS, tallies


@pytest.mark.parametrize("form", ["int8 cache", "adapters"])
def test_a_request_has_the_bits_that_it_has_alone(form: str, tmp_path: Path) -> None:
    found = tallies(FORMS[form], save_latents(tmp_path), ("everything",), 5, at_once=5)
    for kind, tally in found.items():
        assert tally.first is None, f"{kind}: {tally.bits} of {tally.requests}; {tally.first}"
