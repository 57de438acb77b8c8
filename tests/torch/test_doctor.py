"""``quire doctor`` on this machine."""

from __future__ import annotations

import json

import pytest

from quire.kernels.instructions import choose_instructions
from quire.tools.cli import main


def test_it_tells_what_an_engine_would_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kernels"] or "") == choose_instructions().name
    assert 1 <= facts["threads"] <= facts["cores"] <= facts["cpus"]
    assert facts["free"] <= facts["memory"] and facts["bandwidth"] > 0
    assert all(set(one) == {"finding", "remedy"} for one in facts["advice"])
