"""The paper's walk-throughs, with its own block numbers, and published sizes of models' tokens."""

from __future__ import annotations

from dataclasses import replace

from quire_lab.reproduction.experiment import QUICK
from quire_lab.reproduction.run import agreement
from quire_lab.reproduction.walk_through import walk_through

FOUND = walk_through(QUICK)


def rows(number: int) -> list[tuple[str, ...]]:
    """What tables and figures say after each event, without its name."""
    return [row[1:] for row in FOUND.tables[number].rows]


def test_figure_6_block_by_block() -> None:
    assert rows(0) == [
        ("none", "0", "0", "0", "0", "9"),
        ("A  7: 0, 1: 0", "2", "0", "0", "1", "7"),
        ("A  7: 4, 1: 3", "2", "0", "7", "1", "7"),
        ("A  7: 4, 1: 4", "2", "0", "8", "0", "7"),
        ("A  7: 4, 1: 4, 3: 1", "3", "0", "9", "3", "6"),
        ("none", "0", "0", "0", "0", "9"),
    ]


def test_figure_8_block_by_block() -> None:
    assert rows(1) == [
        ("A  7: 4, 1: 3", "2", "0", "7", "1", "7"),
        ("A  7: 4, 1: 3; B  7: 4, 1: 3", "2", "2", "7", "1", "7"),
        ("A  7: 4, 3: 4; B  7: 4, 1: 4", "3", "1", "12", "0", "6"),
        ("B  7: 4, 1: 4", "2", "0", "8", "0", "7"),
        ("none", "0", "0", "0", "0", "9"),
    ]
    assert "block 1 to 3 is copied first" in FOUND.tables[1].rows[2][0]


def test_all_agrees_but_a_model_that_was_changed_since() -> None:
    differing = [one.what for one in FOUND.findings if one.agrees is False]
    assert differing == ["128,000 tokens of llama-3.1-405b"]
    by_name = {one.what: one for one in FOUND.findings}
    assert len(by_name) == len(FOUND.findings)
    # 2 x layers x KV heads x head size x 2 bytes; DeepSeek: 61 layers x (512 + 64) x 2.
    for name, kib in {
        "opt-175b": 2 * 96 * 96 * 128 * 2 / 1024, "qwen2.5-7b": 2 * 28 * 4 * 128 * 2 / 1024,
        "deepseek-v3": 61 * 576 * 2 / 1024,
    }.items():  # fmt: skip
        assert by_name[f"a token of {name}"].ours == kib


def test_progress_tells_what_agrees_or_that_nothing_is_published() -> None:
    assert agreement(FOUND) == "20 of 21 figures as published"
    ours = tuple(replace(one, published=()) for one in FOUND.findings)
    assert agreement(replace(FOUND, findings=ours)) == "no figure is published"
