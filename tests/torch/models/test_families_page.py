"""The page of families is what the last run of all of them has found, of the families there are."""

from __future__ import annotations

import json

import pytest
from scripts import families
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from quire.models import loader
from quire.models.shape.towers import WITH_IMAGES

if not families.PAGE.exists():
    pytest.skip("Quire runs without its sources", allow_module_level=True)

RESULTS = [families.Found(**one) for one in json.loads(families.RECORD.read_text())]


def test_the_page_says_what_was_found() -> None:
    found, page = (
        text[text.index("##") :]  # the version of transformers stands before
        for text in (families.page(RESULTS), families.PAGE.read_text())
    )
    assert found == page, "python scripts/families.py"


def test_what_is_served_computes_what_transformers_computes() -> None:
    served = [one for one in RESULTS if one.how in ("Quire", "transformers")]
    assert len(served) > 95
    assert all(one.difference < families.TOLERANCE for one in served)


def test_all_that_have_code_here_are_found_so() -> None:
    found = {one.architecture: one.how for one in RESULTS}
    native = {name for name, how in found.items() if how == "Quire"}
    wholes = {name for name in native if name.endswith("ForConditionalGeneration")}
    known = {
        *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(),
        *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values(),
    }
    assert native - wholes == loader._NATIVE.keys() & known
    assert len(wholes) > 30 and wholes <= set(WITH_IMAGES.values())
    assert not [
        name for name in WITH_IMAGES.values() if found.get(name) in ("refused", "transformers")
    ]
