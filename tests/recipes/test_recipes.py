"""The recipes of CONTRIBUTING.md work: each is followed in a copy of the sources, and tried there.

One file for each: what is changed (``RECIPE``), and what is then there (``check``), which runs in
a process that imports the copy.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from recipes.recipe import Recipe
from support.copied_tree import ROOT, CopiedTree

pytestmark = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists(), reason="Quire runs without its sources"
)

NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "recipe", "test_recipes")
)
MOST_FILES = 4  # beside tests and docs


def recipe(name: str) -> Recipe:
    found: Recipe = import_module(f"recipes.{name}").RECIPE
    return found


def sections() -> dict[str, str]:
    """The recipes of CONTRIBUTING.md by their headings."""
    _, _, recipes = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("# Recipes\n")
    parts = re.split(r"^## (.*)\n", recipes, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_recipe_is_followed() -> None:
    assert sections().keys() == {recipe(name).heading for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_which_files_are_touched(name: str) -> None:
    text = sections()[recipe(name).heading]
    for file in recipe(name).files:
        folder, _, name = file.rpartition("/")
        of_its_kind = f"{folder.rpartition('/')[0]}/NAME/{name}"
        named = file in text or f"{folder}/" in text or of_its_kind in text
        assert named, f"{file} is not named"


@pytest.mark.parametrize("name", NAMES)
def test_it_touches_few_files(name: str) -> None:
    assert len(recipe(name).files) <= MOST_FILES


@pytest.mark.parametrize("name", NAMES)
def test_its_edits_fit_the_sources(name: str) -> None:
    for file, old, _ in recipe(name).edits:
        assert (ROOT / file).read_text(encoding="utf-8").count(old) == 1, f"{file}: {old}"
    assert not any((ROOT / file).exists() for file in recipe(name).adds)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_it_makes_works(name: str, tmp_path: Path) -> None:
    tree = CopiedTree(tmp_path)
    recipe(name).follow(tree)
    run = tree.run("-W", "error", "-c", f"from recipes.{name} import check; check()")
    assert run.returncode == 0, run.stderr[-4000:]
