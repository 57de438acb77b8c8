"""The list of planted bugs fits the sources: ``make mutants`` plants them and runs their tests."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

import pytest

from mutants.catalogue import WINGS
from mutants.mutant import Mutant
from support.copied_tree import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "lab").exists(), reason="Quire runs without its sources"
)


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def names_in(file: str) -> frozenset[str]:
    """Of tests and of classes that are tests."""
    tree = ast.parse(text_of(file))
    targets = [n for node in tree.body if isinstance(node, ast.Assign) for n in node.targets]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(names | {node.name for node in ast.walk(tree) if isinstance(node, kinds)})


@pytest.mark.parametrize("wing", sorted(WINGS))
def test_each_can_be_planted_and_has_its_test(wing: str) -> None:
    for mutant in WINGS[wing]:
        assert text_of(mutant.file).count(mutant.old) == 1, mutant
        assert mutant.old != mutant.new, mutant
        assert not mutant.file.startswith("csrc"), "copies have what is compiled already"
        file, *names = mutant.test.partition("[")[0].split("::")
        assert names and set(names) <= names_in(file), mutant


def test_none_is_there_twice() -> None:
    mutants: list[Mutant] = [mutant for wing in WINGS.values() for mutant in wing]
    assert max(Counter(mutant[1:4] for mutant in mutants).values()) == 1
    assert max(Counter(mutant.what for mutant in mutants).values()) == 1
