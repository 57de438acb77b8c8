"""A rounded projection is read as the weight that its format describes, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from quire.core.errors import ModelError
from quire.kernels.packing import Format
from quire.models.linear.checkpoints import read_checkpoint
from quire.models.shape import ConfigFields
from quire.models.stored import ByGroups, ByOutputs, Stored
from quire.models.weights import Weights
from support import stored_weights as stored
from support.stored_weights import INPUTS, OUTPUTS, Case

INT4, INT8 = Format.int4, Format.grouped_int8


def read(directory: Path, case: Case, dtype: torch.dtype = torch.float32) -> Stored:
    save_file({n: t.contiguous() for n, t in case.tensors.items()}, directory / "model.safetensors")
    weights = Weights(directory, dtype)
    checkpoint = read_checkpoint(ConfigFields(case.config, "config.json"), weights)
    assert checkpoint.holds("a") and not checkpoint.holds("lm_head")
    found = checkpoint.read("a", INPUTS, OUTPUTS)
    weights.finish()  # nothing is left over
    return found


def form_of(weight: Stored) -> object:
    if isinstance(weight, ByGroups):
        return weight.form
    return "rows" if isinstance(weight, ByOutputs) else "floats"


@pytest.mark.parametrize(
    ("case", "form"),
    [
        (stored.gptq(4, 32), INT4),
        (stored.gptq(2, 32), INT4),
        (stored.gptq(8, 64), INT8),
        (stored.gptq(4, 32, v2=True), INT4),
        (stored.gptq(4, 32, desc_act=True), INT4),
        (stored.gptq(8, 32, desc_act=True), INT8),
        (stored.auto_round("auto_round:auto_gptq"), INT4),
        (stored.auto_round("auto_round:gptqmodel"), INT4),
        (stored.auto_round("auto_round"), INT4),
        (stored.modelopt(()), "floats"),
        (stored.modelopt((OUTPUTS,)), "floats"),
        (stored.pack_quantized(4, 32), INT4),
        (stored.pack_quantized(4, 64, symmetric=False), INT4),
        (stored.pack_quantized(4, INPUTS), INT4),
        (stored.pack_quantized(8, 32), INT8),
        (stored.pack_quantized(8, INPUTS, symmetric=False), INT8),
        (stored.pack_quantized(4, 32, symmetric=False, g_idx=True), INT4),
        (stored.pack_quantized(4, 2), "floats"),  # kernels have no such groups
        (stored.int_quantized(INPUTS), "rows"),
        (stored.int_quantized(INPUTS, rows=stored.STATIC), "rows"),
        (stored.int_quantized(INPUTS, rows=stored.DYNAMIC), "rows"),
        (stored.int_quantized(INPUTS, symmetric=False), INT8),
        (stored.int_quantized(32), INT8),
        (stored.float_quantized((OUTPUTS, 1)), "floats"),
        (stored.float_quantized(()), "floats"),
        (stored.fp8_blocks((32, 32)), "floats"),
        (stored.fp8_blocks((128, 96)), "floats"),
        (stored.bitsandbytes_4(nested=False), "floats"),
        (stored.bitsandbytes_4(nested=True), "floats"),
        (stored.bitsandbytes_4(nested=True, storage=torch.bfloat16, block=4096), "floats"),
        (stored.bitsandbytes_8(), "rows"),
    ],
)
def test_a_weight_is_what_its_format_says(case: Case, form: object, tmp_path: Path) -> None:
    found = read(tmp_path, case)
    assert form_of(found) == form
    weight = found if isinstance(found, Tensor) else found.floats(torch.float32)
    np.testing.assert_allclose(weight.double().numpy(), case.weight, rtol=3e-7, atol=1e-6)


def test_only_rows_that_are_rounded_as_they_come_are_rounded(tmp_path: Path) -> None:
    for rows, rounds in ((stored.DYNAMIC, True), (stored.STATIC, False), (None, False)):
        found = read(tmp_path, stored.int_quantized(INPUTS, rows=rows))
        assert isinstance(found, ByOutputs) and found.rounds_rows is rounds


def test_floats_are_rounded_once(tmp_path: Path) -> None:
    case = stored.fp8_blocks((32, 32))
    found = read(tmp_path, case, torch.bfloat16)
    assert torch.equal(found, torch.from_numpy(case.weight).float().bfloat16())


def test_scales_that_float16_cannot_hold_are_not_cut(tmp_path: Path) -> None:
    case = stored.pack_quantized(4, 32)
    case.tensors["a.weight_scale"] *= 1e-6
    found = read(tmp_path, case)
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), case.weight * 1e-6, rtol=2**-7)


def changed(case: Case, name: str, change: Callable[[Tensor], Tensor] | None) -> Case:
    tensors = dict(case.tensors)
    tensor = tensors.pop(f"a.{name}")
    if change is not None:
        tensors[f"a.{name}"] = change(tensor)
    return case._replace(tensors=tensors)


def ones_in_front(tensor: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(tensor[:1]), tensor[1:]])


@pytest.mark.parametrize(
    ("case", "name", "change", "message"),
    [
        (stored.gptq(4, 32), "scales", None, "no tensor a.scales"),
        (stored.gptq(4, 32), "scales", Tensor.int, "a.scales holds torch.int32 where floats"),
        (stored.gptq(4, 32), "qweight", lambda t: t[1:], r"a.qweight has shape \(15, 48\)"),
        (stored.gptq(4, 32), "g_idx", lambda t: t + 1, "a.g_idx does not put 32 inputs into each"),
        (stored.gptq(4, 32), "g_idx", lambda t: t - 1, "a.g_idx does not put 32 inputs into each"),
        (stored.gptq(4, 32), "g_idx", lambda t: t * 10**8, "a.g_idx does not put 32 inputs"),
        (stored.gptq(4, 32, desc_act=True), "g_idx", None, r"a has no g_idx, which .*desc_act"),
        (stored.gptq(4, 48), "g_idx", None, r"128 inputs, which groups \(group_size\) of 48 do"),
        (stored.pack_quantized(4, 32), "weight_scale", None, "no tensor a.weight_scale"),
        (stored.pack_quantized(4, 32), "weight_shape", lambda t: t + 1, r"shape is \[49, 129\]"),
        (stored.pack_quantized(4, 32, False), "weight_zero_point", None, "a.weight_zero_point"),
        (stored.int_quantized(INPUTS), "weight", Tensor.float, "float32 where int8 is expected"),
        (stored.float_quantized(()), "weight", Tensor.float, "where float8_e4m3fn or float8_e5m2"),
        (stored.fp8_blocks((32, 32)), "weight_scale_inv", lambda t: t[1:], r"shape \(1, 4\)"),
        (stored.bitsandbytes_4(True), "weight.nested_absmax", None, "a.weight.absmax holds"),
        (stored.bitsandbytes_4(False), "weight", lambda t: t[1:], "3071 bytes, but the config"),
        (
            stored.bitsandbytes_4(False),
            "weight.quant_state.bitsandbytes__nf4",
            lambda t: t[:-1],
            "holds no JSON object",
        ),
    ],
)
def test_what_is_amiss_is_named(
    case: Case,
    name: str,
    change: Callable[[Tensor], Tensor] | None,
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, changed(case, name, change))


def test_names_and_patterns_choose(tmp_path: Path) -> None:
    case = stored.int_quantized(INPUTS)
    groups = case.config["config_groups"]
    groups["group_0"]["targets"] = ["re:.*attn.*", "b"]
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    config: dict[str, Any] = {**case.config, "ignore": ["re:.*k_proj$"]}
    checkpoint = read_checkpoint(
        ConfigFields(config, "config.json"), Weights(tmp_path, torch.float32)
    )
    held = [checkpoint.holds(name) for name in ("attn.q_proj", "attn.k_proj", "b", "mlp.up")]
    assert held == [True, False, True, False]
