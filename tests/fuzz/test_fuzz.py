"""A short run of the fuzzer, and what has failed once; QUIRE_FUZZ_HOURS for a long one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.case import LANGUAGES, drawn, remade
from fuzz.shrink import shrunk

_TESTS = Path(__file__).parents[1]
_HOURS = float(os.environ.get("QUIRE_FUZZ_HOURS", "0"))
_SHORT = (
    "--seconds",
    "60",
    "--cases",
    str(8 * len(LANGUAGES)),
    "--clock",
    "2",
    "--shrinking",
    "0",
)
_PLANTED = {
    "crashed": "ctypes.string_at(0)",
    "slow": "[None for _ in iter(int, 1)]",
    "large": "bytearray(1 << 30)",
    "wrong": "1 / 0",
}
_TRY = """
import ctypes, fuzz.child
fuzz.child.attempt = lambda case, seed, tell: {planted}
limits = fuzz.child.Limits(0.3, 256 << 20)
print(fuzz.child.run(fuzz.child.Case("schema", {{"json": True}}), 0, limits).kind)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process that has no threads, since there are children to be."""
    paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_what_clients_shape_crashes_nothing_and_comes_out_right() -> None:
    done = python("-m", "fuzz", *_SHORT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not _HOURS, reason="QUIRE_FUZZ_HOURS says for how long")
@pytest.mark.timeout(0)
def test_it_does_so_for_hours() -> None:
    first = random.randrange(10**6)
    done = python("-m", "fuzz", "--seconds", str(3600 * _HOURS), "--first", str(first))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_has_failed_once_is_bounded() -> None:
    done = python("-m", "fuzz", "--corpus", "--clock", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_outlives_it_all() -> None:
    done = python("-m", "fuzz", "--server", "--corpus", "--clock", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", list(_PLANTED))
def test_findings_are_found(kind: str) -> None:
    done = python("-c", _TRY.format(planted=_PLANTED[kind]))
    assert done.stdout.strip() == kind, done.stderr


def test_a_template_has_the_memory_of_a_box() -> None:
    given = {"template": "{{ ([1] * 10 ** 8) | length }}", "messages": [{}], "variables": {}}
    tried = f"print(one.run(one.Case('template', {given}), 0, one.Limits()).why)"
    done = python("-c", f"import fuzz.child as one; {tried}")
    assert done.stdout.strip() == "it needs too much memory", done.stderr


@pytest.mark.parametrize("language", list(LANGUAGES))
def test_a_case_can_be_drawn_again(language: str) -> None:
    for seed in range(10):
        case, choices = drawn(language, seed)
        assert drawn(language, seed) == (case, choices)
        assert remade(language, choices) == case
    assert len(str(remade(language, []))) < 300, "what is drawn without choices is plain"


def test_of_choices_only_those_are_left_that_a_failure_needs() -> None:
    def fails(choices: list[int]) -> bool:
        return 7 in choices and sum(one for one in choices if one > 7) >= 30

    small = shrunk([40, 3, 7, 2, 50, 9, 12], fails, 10.0)
    assert sorted(small) == [7, 30]
