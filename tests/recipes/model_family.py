"""Newt: Llama, but for its name and the eps of its norms."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from recipes.recipe import Recipe

RECIPE = Recipe(
    "A model family",
    [
        (
            "src/quire/models/shape/families.py",
            "FAMILIES = (\n",
            'FAMILIES = (\n    FamilyFacts("newt", "NewtForCausalLM"),\n',
        ),
        (
            "src/quire/models/traits.py",
            "TRAITS: Mapping[str, Traits] = {\n",
            'TRAITS: Mapping[str, Traits] = {\n    "NewtForCausalLM": Traits(eps=0.1),\n',
        ),
    ],
)


def check() -> None:
    """Its checkpoints are Llama's under another name, and it can be planned."""
    import torch

    from quire.models.decoder import DecoderModel
    from quire.models.loader import load_model
    from quire_lab.simulation.catalogue.models import find_model
    from support.hf_reference import random_prompts
    from support.paged_harness import PagedHarness
    from support.small_models import make_model

    with tempfile.TemporaryDirectory() as folder:
        llama, newt = make_model("llama", Path(folder)), Path(folder, "newt")
        shutil.copytree(llama, newt, ignore=shutil.ignore_patterns("newt"))

        def configure(directory: Path, **fields: object) -> None:
            path = directory / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | fields))

        configure(newt, architectures=["NewtForCausalLM"], model_type="newt")
        configure(llama, rms_norm_eps=0.1)
        model = load_model(newt)
        assert isinstance(model, DecoderModel)
        texts = random_prompts(5, 19)
        found, expected = (PagedHarness(m).prefill(texts, 7) for m in (model, load_model(llama)))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert find_model(str(newt)).num_layers == find_model(str(llama)).num_layers
