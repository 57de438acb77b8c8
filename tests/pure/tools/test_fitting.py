"""What fits into a machine's memory, and which real models are suggested for it."""

from __future__ import annotations

import pytest

from quire.execution.memory_limits import FREE_MEMORY_SHARE
from quire.models.shape import rounded_form
from quire.tools.commands import fitting
from quire.tools.commands.fitting import ON_GPUS, SUGGESTED, room_for, suggest, suggestions

GIB = 1 << 30
# By gigabytes of a machine, of which a system and a shell leave so many GiB free.
FREE = {8: 6.0, 16: 13.0, 32: 28.0}
LARGEST = {
    8: "quire serve google/gemma-4-E4B-it --quantization int4",
    16: "quire serve Qwen/Qwen3.5-9B --quantization int8",
    32: "quire serve Qwen/Qwen3.5-35B-A3B --quantization int4",
}
PLAIN = {8: "Qwen/Qwen3.5-2B", 16: "google/gemma-4-E2B-it", 32: "Qwen/Qwen3.5-9B"}
PARAMS = {  # billions, as their makers and transformers' classes count them, without what sees
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.135, "Qwen/Qwen3.5-0.8B": 0.752,
    "Qwen/Qwen3.5-2B": 1.882, "Qwen/Qwen3.5-4B": 4.206, "google/gemma-4-E2B-it": 4.63,
    "google/gemma-4-E4B-it": 7.46, "Qwen/Qwen3.5-9B": 8.954, "Qwen/Qwen3.5-27B": 26.9,
    "google/gemma-4-31B-it": 30.7, "Qwen/Qwen3.5-35B-A3B": 34.66,
}  # fmt: skip


def test_shapes_are_those_of_the_models_by_their_parameters() -> None:
    assert {shape.name: shape.num_params / 1e9 for shape in SUGGESTED} == pytest.approx(
        PARAMS, rel=4e-3
    )
    assert not any(shape.notes or shape.planned_only for shape in (*SUGGESTED, *ON_GPUS))


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where they were compiled; to look would load torch."""
    monkeypatch.setattr(fitting, "why_missing", lambda part: None)


@pytest.mark.parametrize("machine", FREE)
def test_each_model_is_suggested_in_the_best_form_that_fits(machine: int) -> None:
    memory = int(FREE[machine] * GIB)
    found = list(suggestions(memory, FREE_MEMORY_SHARE))
    commands = [one.command for one in found]
    assert commands[-1] == LARGEST[machine]
    plain = [command for command in commands if "--quantization" not in command]
    assert plain[-1] == f"quire serve {PLAIN[machine]}"
    by_name = {shape.name: shape for shape in SUGGESTED}
    for command, weight_bytes, room in found:
        name, _, form = command.removeprefix("quire serve ").partition(" --quantization ")
        shape, longest = by_name[name], room.longest or 0
        cache = shape.cache()
        whole = zip(cache.windows, cache.token_bytes, strict=True)
        kept = sum(size for window, size in whole if window is None)
        sizes = {"": (2.0, 2.01), "int8": (1.0, 1.53), "int4": (0.59, 0.75)}[form]  # of tables too
        assert sizes[0] <= weight_bytes / shape.num_params <= sizes[1]
        assert weight_bytes + longest * kept + sum(cache.states) <= memory and longest >= 4096
        assert room.users >= 1 and room.users_at_longest >= 1


def test_where_nothing_fits_that_is_said_and_where_it_does_each_is_a_row() -> None:
    (line,) = suggest(100 << 20, FREE_MEMORY_SHARE)
    assert "100 MiB, which are free here" in line
    first, head, *rows = suggest(int(6 * GIB), FREE_MEMORY_SHARE)
    assert "fit into the 6 GiB" in first and "users at 2,048" in head
    assert rows[0].split()[:3] == ["quire", "serve", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert all(row.lstrip().startswith("quire serve ") for row in rows)


def test_on_a_gpu_weights_are_as_they_are() -> None:
    found = [one.command for one in suggestions(24 * GIB, 1.0, is_gpu=True)]
    assert found[-1] == "quire serve Qwen/Qwen3-8B"
    assert not any("--quantization" in command for command in found)
    assert not any(any(shape.cache().states) for shape in ON_GPUS)


def test_without_kernels_no_form_is_suggested_that_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "why_missing", lambda part: "no compiler")
    found = [one.command for one in suggestions(13 * GIB, FREE_MEMORY_SHARE)]
    assert found[-1] == "quire serve google/gemma-4-E2B-it"
    assert not any("--quantization" in command for command in found)


def test_a_model_with_states_and_no_room_at_all_does_not_fit() -> None:
    hybrid = next(shape for shape in SUGGESTED if any(shape.cache().states))
    for memory in (0, hybrid.weight_bytes, hybrid.weight_bytes + 1):
        assert room_for(hybrid.cache(), hybrid.weight_bytes, memory, 1.0, 2048) is None


def test_forms_are_those_that_the_command_takes() -> None:
    for form in ("int8", "int4"):
        assert rounded_form(form, SUGGESTED[0].weight_form).name == form
