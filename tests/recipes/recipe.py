"""What somebody changes who follows a recipe of CONTRIBUTING.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.copied_tree import CopiedTree


@dataclass(frozen=True)
class Recipe:
    """heading: the recipe's. edits: of files, what stands there and what is to. adds: new files."""

    heading: str
    edits: Sequence[tuple[str, str, str]]
    adds: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> set[str]:
        """All that are touched; tests and docs come on top."""
        return {file for file, _, _ in self.edits} | set(self.adds)

    def follow(self, tree: CopiedTree) -> None:
        """Change a copy of the sources so."""
        for file, old, new in self.edits:
            tree.replace(file, old, new)
        for file, text in self.adds.items():
            tree.write(file, text)
