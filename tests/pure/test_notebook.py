"""The notebook of examples/: its cells run, and are the examples that it says they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import quire

EXAMPLES = Path(quire.__file__).parents[2] / "examples"
PRINTED = [
    "7 tokens take 2 of 8 free blocks: now",
    "7 tokens are in blocks (0, 1)",
    "'brought' takes 1 new blocks, and slot 8",
    "of 32 slots 9 hold tokens, 3 are empty ends",
    "the table is (2, 3, 4) now, and position 8 in slot 16",
    "8 of 8 blocks are free",
    "three sequences hold 3 blocks; 6 more without sharing",
    "each adds a token: 2 of 3 copy the last block first, [(2, 3), (2, 4)]",
    "a later prompt that begins alike finds 8 of its 11 tokens",
    "1,000 tokens are in 3 of 6 blocks; 247 were given back",
    "position 500: block 125 has been given back: no later token sees it",
]


@pytest.mark.skipif(not EXAMPLES.exists(), reason="Quire runs without its sources")
def test_the_cells_run_and_are_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "block_manager.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    names = ("block_tables", "copy_on_write", "window_and_sinks")
    sources = [(EXAMPLES / f"{name}.py").read_text() for name in names]
    assert code == "\n\n".join(source.split('"""', 2)[2].strip() for source in sources)
    exec(compile(code, "block_manager.ipynb", "exec"), {})
    printed = iter(capsys.readouterr().out.splitlines())
    for line in PRINTED:
        assert line in printed  # after the one before it
