"""Plants bugs, one at a time in a copy of the sources, and says which of them no test finds:

python -m tests.mutants [PART ...]

PART is a wing (core), a file's or a test's path, or words of a bug; without any, all are planted.
A bug counts as found if its test fails by what it asserts or by an error of the code under it; not
if the code cannot be imported. Tests must pass before.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from mutants.catalogue import WINGS  # noqa: E402
from mutants.mutant import Mutant  # noqa: E402
from support.copied_tree import POINTS_NOWHERE, CopiedTree  # noqa: E402

_NO_BUG = re.compile(r"(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError)\b")
_PATIENCE = 120  # seconds for a test; a bug may make it run for ever
# What tests import beside the sources: once for all of them, since each has a fork of this process.
_LOADED, _LOADED_BY_TORCH = ("hypothesis.stateful", "pytest", "numpy"), ("torch", "torch._dynamo")
_OWN = ("mutants", "support", "tests", "quire", "quire_lab", "quire_cluster")


def chosen(parts: Sequence[str]) -> list[Mutant]:
    """The mutants that these words mean: a wing's name stands for all of its own."""
    words = [part for part in parts if part not in WINGS]
    return [
        mutant
        for wing, mutants in WINGS.items()
        for mutant in mutants
        if not parts or wing in parts or any(word in " ".join(mutant) for word in words)
    ]


class Run(NamedTuple):
    """What pytest has said."""

    status: int
    output: str

    @property
    def problem(self) -> str | None:
        """Why a planted bug does not count as found; None: it does."""
        if self.status == 0:
            return "SURVIVES"
        if self.status != 1 or "failed" not in self.output:
            return f"NOT RUN: {self.output[-2000:]}"
        failures = [line for line in self.output.splitlines() if line.startswith("FAILED")]
        broken = [line for line in failures if _NO_BUG.search(line.partition(" - ")[2])]
        return f"BROKEN: {broken[0]}" if broken else None


def begin(tree: CopiedTree, output: Path, *tests: str) -> int:
    """pytest on these, until one fails, in a process whose number is returned."""
    process = os.fork()
    if process:
        return process
    status = 3
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(tree.root)
        os.environ.clear()
        os.environ.update(tree.environment)
        exec(POINTS_NOWHERE)
        sys.dont_write_bytecode = False
        sys.path[:] = [*tree.paths, *(path for path in sys.path[2:] if path)]
        for module in [one for one in sys.modules if one.partition(".")[0] in _OWN]:
            del sys.modules[module]
        import pytest

        options = ["-q", "-x", "-n0", "--tb=line", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = pytest.main([*options, f"--timeout={_PATIENCE}", *tests])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def plant(mutants: Sequence[Mutant], trees: Sequence[CopiedTree]) -> Iterator[tuple[Mutant, Run]]:
    """Plant each in one of these copies; what its test says, as soon as it is known."""
    todo, free = list(reversed(mutants)), list(trees)
    under_way: dict[int, tuple[Mutant, CopiedTree, str]] = {}
    while todo or under_way:
        while todo and free:
            mutant, tree = todo.pop(), free.pop()
            original = tree.root.joinpath(mutant.file).read_text(encoding="utf-8")
            tree.replace(mutant.file, mutant.old, mutant.new)
            process = begin(tree, tree.root / "output", mutant.test)
            under_way[process] = mutant, tree, original
        process, status = os.wait()
        mutant, tree, original = under_way.pop(process)
        tree.write(mutant.file, original)
        free.append(tree)
        output = (tree.root / "output").read_text(encoding="utf-8")
        yield mutant, Run(os.waitstatus_to_exitcode(status), output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: 2)")
    given = parser.parse_args()
    mutants = chosen(given.parts)
    if not mutants:
        parser.error(f"nothing is called {' '.join(given.parts)}")
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="1000")  # before torch is loaded
    tests = list(dict.fromkeys(mutant.test for mutant in mutants))
    with_torch = any("tests/pure/" not in test for test in tests)
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, as it is here
    for module in (*_LOADED, *(_LOADED_BY_TORCH if with_torch else ())):
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        trees = [CopiedTree(Path(folder, str(number))) for number in range(given.jobs)]
        output = Path(folder, "output")
        _, status = os.waitpid(begin(trees[0], output, *tests), 0)
        if status:
            print(output.read_text()[-4000:], "Without any bug these tests do not pass.", sep="\n")
            return 1
        missed = 0
        for mutant, run in plant(mutants, trees):
            problem = run.problem
            missed += problem is not None
            print(f"{problem or 'found'}: {mutant.what} ({mutant.file}; {mutant.test})", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
