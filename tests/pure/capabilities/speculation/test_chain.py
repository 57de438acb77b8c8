"""Which drafters the settings ask for, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from quire.capabilities.speculation.chain import drafters_of
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.core.errors import ConfigError

WITHOUT = """
import sys
sys.modules["quire.capabilities.speculation._native"] = None  # as where it could not be compiled
from quire.capabilities.speculation.config import SpeculativeConfig
from quire.capabilities.speculation import speculation_of
from quire.capabilities.speculation.chain import prediction_drafters
assert prediction_drafters() == []
for method in ("ngram", "suffix", "auto"):
    try:
        speculation_of(SpeculativeConfig(method=method))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("ngram", ["prediction", "ngram"]),
        ("suffix", ["prediction", "suffix"]),
        ("auto", ["prediction", "suffix"]),
    ],
)
def test_a_method_is_a_chain_that_begins_with_predictions(method: str, names: list[str]) -> None:
    assert [one.name for one in drafters_of(SpeculativeConfig(method=method))] == names


def test_without_the_compiled_module_methods_that_need_it_are_refused_by_name() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line, method in zip(lines, ("ngram", "suffix", "auto"), strict=True):
        assert line.startswith(f'ConfigError speculative_config: method "{method}" needs')
        assert 'method "draft"' in line and "compiler" in line


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("suffix_decoding_max_spec_factor", [0.1, 1, 16], [0, 17, "2", True, None, float("nan")]),
        ("suffix_decoding_min_token_prob", [0, 0.5, 1.0], [-0.1, 1.1, "x", None]),
        ("suffix_decoding_max_cached_requests", [0, 10**6], [-1, 0.5, None, 2**32]),
        (
            "suffix_decoding_cache_bytes",
            [0, "0", "1MiB", 2**30, "64GiB"],
            [1, "1KiB", "65GiB", "much", -1, None, True],
        ),
        ("suffix_decoding_max_tree_depth", [], [24]),
    ],
)
def test_options_have_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        SpeculativeConfig.of({name: value})
    for value in bad:
        with pytest.raises(ConfigError, match=name):
            SpeculativeConfig.of({name: value})
