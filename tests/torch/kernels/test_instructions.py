"""One build of the kernels computes everything, and the person who starts the engine knows why."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.kernels import _native, cpu
from quire.kernels.compiled import KERNELS, why_missing
from quire.kernels.dispatch import choose_kernels
from quire.kernels.instructions import (
    NOT_COMPILED,
    Instructions,
    choose,
    choose_instructions,
    lifted_by_nobody,
)
from quire.kernels.reference import ReferenceKernels

BUILDS = ["amx", "avx512_bf16", "avx512", "avx2", "portable"]
OLD = dict.fromkeys(BUILDS[:3], "the processor has no avx512f")
WITHHELD = {"amx": "the system refused permission for AMX: Operation not permitted"}


def test_the_best_that_runs_is_chosen_and_the_better_ones_are_told() -> None:
    assert choose("auto", BUILDS, {}) == Instructions("amx")
    assert choose("auto", BUILDS, {}).describe() == "amx"
    chosen = choose("auto", BUILDS, WITHHELD)
    assert chosen.describe() == f"avx512_bf16 (amx: {WITHHELD['amx']})"
    assert list(choose("auto", BUILDS, OLD).refusals) == BUILDS[:3]
    # A worse one that does not run is nobody's concern.
    assert choose("auto", BUILDS, {"avx2": "the processor has no f16c"}).describe() == "amx"


def test_one_that_is_asked_for_runs_or_is_refused_by_name() -> None:
    assert choose("avx2", BUILDS, OLD).describe() == "avx2, as cpu_isa says"
    with pytest.raises(ConfigError) as refused:
        choose("avx512", BUILDS, OLD)
    assert str(refused.value) == (
        "cpu_isa 'avx512' cannot run here: the processor has no avx512f; "
        "this machine can run avx2, portable; quire doctor says what this machine has"
    )
    with pytest.raises(ConfigError, match=r"^cpu_isa must be one of auto, amx, .*; got 'neon'$"):
        choose("neon", BUILDS, {})


@pytest.mark.parametrize(
    ("refusals", "level"), [({}, "INFO"), (OLD, "INFO"), (WITHHELD, "WARNING")]
)
def test_it_is_a_warning_where_the_system_withholds_what_the_processor_has(
    refusals: dict[str, str],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cpu, "all_builds", lambda: BUILDS)
    monkeypatch.setattr(cpu, "refusals", lambda: refusals)
    with caplog.at_level(logging.INFO):
        chosen = choose_instructions()
    (record,) = caplog.records
    assert (record.levelname, record.message) == (level, f"kernels: {chosen.describe()}")


def test_without_the_module_only_auto_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quire.kernels.cpu", None)
    monkeypatch.delattr("quire.kernels.cpu")
    assert choose_instructions() == Instructions("")
    with pytest.raises(ConfigError, match="cpu_isa 'avx2' needs the kernels in C"):
        choose_instructions("avx2")


def test_kernels_for_another_processor_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "usable", list)
    monkeypatch.setattr(_native, "refusals", lambda: OLD)
    monkeypatch.delitem(sys.modules, "quire.kernels.cpu")
    missing = why_missing(KERNELS)
    assert missing is not None
    assert missing.startswith("they were compiled for another processor (amx: the processor has no")
    assert choose_instructions() == Instructions("")
    assert isinstance(choose_kernels(torch.float32), ReferenceKernels)


def test_what_was_not_compiled_is_refused_by_name_and_is_a_warning_if_better() -> None:
    left_out = dict.fromkeys(["amx", "avx2"], f"{NOT_COMPILED} (QUIRE_ISAS=all does)")
    assert choose("auto", BUILDS, left_out).describe() == (
        "avx512_bf16 (amx: it was not compiled (QUIRE_ISAS=all does))"
    )
    assert not lifted_by_nobody(left_out["amx"])
    with pytest.raises(ConfigError, match=r"'avx2' cannot run here: it was not compiled .*; this"):
        choose("avx2", BUILDS, left_out)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_build_for_this_machine_is_of_what_is_best_here(tmp_path: Path) -> None:
    program = tmp_path / "processor"
    source = Path(__file__).parents[3] / "csrc" / "processor.cpp"
    flags = ["-std=c++17", "-DQUIRE_SAYS_WHICH", "-o", str(program)]
    subprocess.run(["c++", str(source), *flags], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    *withheld, best = said.removesuffix(";").split(";")
    assert best == cpu.instruction_sets()[0]
    better = cpu.all_builds()[: cpu.all_builds().index(best)]
    assert withheld == [name for name in better if not lifted_by_nobody(cpu.refusals()[name])]


def test_every_build_runs_here_or_says_why_not() -> None:
    assert [name for name in cpu.all_builds() if name not in cpu.refusals()] == (
        cpu.instruction_sets()
    )
    for name, why in cpu.refusals().items():
        with pytest.raises(ValueError, match=re.escape(why)):
            cpu.CPUKernels(name)


@pytest.mark.parametrize("family", ["smollm", "gpt2"])  # of our own; through transformers
@pytest.mark.parametrize("build", cpu.instruction_sets())
def test_one_build_computes_everything(
    build: str,
    family: str,
    model_dir: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def spied(kind: Any) -> Callable[[str], Any]:
        def make(name: str) -> Any:
            found = kind(name)
            made.append(found.name)
            return found

        return make

    monkeypatch.setattr(_native, "Kernels", spied(_native.Kernels))
    monkeypatch.setattr(_native, "Products", spied(_native.Products))
    llm = LLM(model_dir(family), cpu_isa=build, kv_cache_memory_bytes="16MiB")
    llm.generate("and", SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(made) >= 2
    assert set(made) == {build}
    assert llm.capacity.describe().endswith(f" Kernels: {build}, as cpu_isa says.")


def test_it_is_refused_before_a_model_is_looked_for() -> None:
    with pytest.raises(ConfigError, match=r"cpu_isa must be one of auto, .*portable; got 'sse9'"):
        LLM("/no/such/model", cpu_isa="sse9")
    with pytest.raises(ConfigError, match="cpu_isa must not be None"):
        EngineConfig(cpu_isa=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cpu_isa does nothing on a GPU"):
        EngineConfig(cpu_isa="avx2", device="cuda")
