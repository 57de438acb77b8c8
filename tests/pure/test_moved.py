"""Documented names are still found where they were, and say where they are."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from quire.moved import MOVED

NAMES = {
    "quire.config": ("EngineConfig", "ServerConfig"),
    "quire.core.protocol": ("PoolingParams", "SamplingParams", "StructuredOutputs"),
    "quire.errors": ("ConfigError", "QuireError"),
    "quire.memory": ("Demand", "PagedAllocator", "Window", "hash_blocks", "root_hash"),
    "quire.simulation": ("Deployment", "OpenLoop", "Simulator", "find_machine", "find_model"),
    "quire.workload": ("Lengths", "Synthetic", "TraceRequest"),
}


@pytest.mark.parametrize(("old", "name"), [(o, n) for o, names in NAMES.items() for n in names])
def test_an_old_name_is_the_new_one_and_tells_so(old: str, name: str) -> None:
    module = importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} is quire(_lab)?\..* now"):
        found = getattr(module, name)
    assert any(getattr(importlib.import_module(place), name, None) is found for place in MOVED[old])
    with pytest.raises(AttributeError, match="has no attribute"):
        module.nothing_of_this_name  # noqa: B018


def test_no_other_module_is_found() -> None:
    assert NAMES.keys() == MOVED.keys()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("quire.cluster")
    assert "quire.cluster" not in sys.modules


def test_what_has_stayed_is_found_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from quire.core.protocol import Request
    assert Request.__module__ == "quire.core.protocol.request"
