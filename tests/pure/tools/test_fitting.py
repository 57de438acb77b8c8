"""What fits into a machine's memory, and which real models are suggested for it."""

from __future__ import annotations

import pytest

from quire.execution.memory_limits import FREE_MEMORY_SHARE
from quire.models.shape import rounded_form
from quire.tools.commands.fitting import SUGGESTED, suggest, suggestions

GIB = 1 << 30
# By gigabytes of a machine, of which a system and a shell leave so many GiB free.
FREE = {8: 6.0, 16: 13.0, 32: 28.0}
LARGEST = {
    8: "quire serve Qwen/Qwen3-8B --quantization int4",
    16: "quire serve Qwen/Qwen3-14B --quantization int4",
    32: "quire serve Qwen/Qwen3-32B --quantization int4",
}
PLAIN = {8: "Qwen/Qwen3-1.7B", 16: "Qwen/Qwen3-4B", 32: "Qwen/Qwen3-8B"}


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
        kept = shape.kv_bytes_per_token
        size = {"": 2.0, "int8": 1.0, "int4": 0.64}[form]
        assert weight_bytes == pytest.approx(shape.num_params * size, rel=0.2)
        assert weight_bytes + longest * kept <= memory and longest >= 4096
        assert room.users >= 1 and room.users_at_longest >= 1


def test_where_nothing_fits_that_is_said_and_where_it_does_each_is_a_row() -> None:
    (line,) = suggest(100 << 20, FREE_MEMORY_SHARE)
    assert "100 MiB, which are free here" in line
    first, head, *rows = suggest(int(6 * GIB), FREE_MEMORY_SHARE)
    assert "fit into the 6 GiB" in first and "users at 2,048" in head
    assert rows[0].split()[:3] == ["quire", "serve", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert all(row.lstrip().startswith("quire serve ") for row in rows)


def test_on_a_gpu_weights_are_as_they_are() -> None:
    found = suggestions(24 * GIB, 1.0, rounded=False)
    assert not any("--quantization" in one.command for one in found)


def test_forms_are_those_that_the_command_takes() -> None:
    for form in ("int8", "int4"):
        assert rounded_form(form, SUGGESTED[0].weight_form).name == form
