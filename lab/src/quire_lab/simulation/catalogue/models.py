"""Models that are known by name, by their published configs (``models.json``)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quire.core.errors import ModelError
from quire.models.demo import DEMO_MODEL
from quire.models.files import read_json
from quire.models.shape import ConfigFields, ModelShape, read_shape, shape_of

_ENTRIES = read_json(Path(__file__).with_name("models.json"))

MODELS: Mapping[str, ModelShape] = {
    entry["name"]: shape_of(entry["name"], ConfigFields(entry["config"], entry["name"]))
    for entry in _ENTRIES
}

_DEMO, _DEMO_DIRECTORY = "quire-demo", DEMO_MODEL
"""The model that comes with Quire, as its server calls it."""

_TUNED = re.compile(r"-(instruct|it|pt|hf|chat|base)(?=-|$)")
"""What a hub's names say of a model's training, and not of its shape."""


def _plain(hub_name: str) -> str:
    return _TUNED.sub("", hub_name.lower())


_BY_HUB = {_plain(entry["hub"]): entry["name"] for entry in _ENTRIES if "hub" in entry}


def hub_name(name: str) -> str | None:
    """A model of the catalogue, as the hub calls it; None: it has it not, or is none of these."""
    known = _BY_HUB.get(_plain(name), name.lower())
    return next((each.get("hub") for each in _ENTRIES if each["name"] == known), None)


def find_known(name: str) -> ModelShape | None:
    """A model of the catalogue, by its name there or on Hugging Face's hub, or our own."""
    own = name.lower()
    if own == _DEMO:
        return replace(read_shape(_DEMO_DIRECTORY), name=_DEMO)
    return MODELS.get(own) or MODELS.get(_BY_HUB.get(_plain(own), ""))


def find_model(name: str) -> ModelShape:
    """A model of the catalogue, or the one that a directory, config.json or GGUF file describes.

    Raises:
        ModelError: there is neither, or the config lacks what a shape needs.
    """
    known = find_known(name)
    if known is not None:
        return known
    path = Path(name)
    if path.exists():
        return read_shape(path)
    own = name.lower().rpartition("/")[2]
    close = [known for known in MODELS if known.startswith(own)]
    close = close or difflib.get_close_matches(own, MODELS, n=1)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ModelError(
        f"model {name!r} is neither in the catalogue nor a config.json or GGUF file; {hint}"
        f"known: {', '.join(MODELS)}"
    )
