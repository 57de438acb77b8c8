"""What ranks hold of a rounded weight is, together, the whole: number for number."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from torch import Tensor

from quire.kernels.products import Products
from quire.models.gguf import is_gguf
from quire.models.linear import LinearReader, Quantization
from quire.models.linear.checkpoints import GGUF, RoundedProjections, read_checkpoint
from quire.models.linear.packed import pack
from quire.models.parts import ALL, Rows
from quire.models.shape import ConfigFields
from quire.models.stored import ByGroups, ByOutputs, Stored
from quire.models.weights import Weights
from support import stored_weights as stored
from support.gguf_files import random_blocks
from support.rounded_checkpoints import awq
from support.stored_weights import INPUTS, OUTPUTS

FORMATS = {
    "gptq": stored.gptq(4, 32),
    "gptq 2 bits": stored.gptq(2, 64, v2=True),
    "gptq of rows": stored.gptq(8, INPUTS),
    "gptq desc_act": stored.gptq(4, 32, desc_act=True),
    "packed": stored.pack_quantized(4, 32, symmetric=False),
    "packed g_idx": stored.pack_quantized(8, 32, symmetric=False, g_idx=True),
    "packed rows": stored.pack_quantized(8, INPUTS),
    "int": stored.int_quantized(32, symmetric=False),
    "int rows": stored.int_quantized(INPUTS, rows=stored.DYNAMIC),
    "int rows and zeros": stored.int_quantized(INPUTS, symmetric=False),
    "fp8 rows": stored.float_quantized((OUTPUTS, 1)),
    "fp8": stored.float_quantized(()),
    "fp8 blocks": stored.fp8_blocks((32, 32)),
    "fp8 blocks that are cut off": stored.fp8_blocks((20, 48)),
    "nf4": stored.bitsandbytes_4(nested=True),
    "nf4 blocks over rows": stored.bitsandbytes_4(nested=False, block=4096),
    "llm.int8": stored.bitsandbytes_8(),
}
ROWS: list[Rows] = [slice(0, 24), slice(36, 48), torch.tensor([40, 3, 4, 5, 0, 17])]
COLUMNS = [slice(0, 64), slice(64, 96), slice(48, 96), slice(24, 48), slice(20, 40), slice(40, 72)]


def floats(weight: Stored) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.floats(torch.float32)


def check_parts(
    checkpoint: RoundedProjections, name: str, outputs: int, inputs: int, step: int
) -> None:
    """step: by how many times the columns are wider."""
    whole = floats(checkpoint.read(name, inputs, outputs))
    for rows in ROWS:
        found = checkpoint.read(name, inputs, outputs, rows)
        assert torch.equal(floats(found), whole[rows])
    for columns in (slice(one.start * step, one.stop * step) for one in COLUMNS):
        found = checkpoint.read(name, inputs, outputs, ALL, columns)
        assert torch.equal(floats(found), whole[:, columns]), columns
        if not isinstance(found, ByOutputs):  # of which some round x
            ones = torch.eye(columns.stop - columns.start)
            assert torch.equal(pack(Products(), found, None).floats(ones).T, whole[:, columns])


@pytest.mark.parametrize("form", FORMATS)
def test_parts_of_a_checkpoints_weight(form: str, tmp_path: Path) -> None:
    case = FORMATS[form]
    save_file({n: t.contiguous() for n, t in case.tensors.items()}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path, torch.float32)
    checkpoint = read_checkpoint(ConfigFields(case.config, "config.json"), weights)
    check_parts(checkpoint, "a", OUTPUTS, INPUTS, 1)
    weights.finish()  # nothing is left over


def test_parts_of_awq(tmp_path: Path) -> None:
    tensors = awq("a", torch.randn(OUTPUTS, INPUTS), 32)
    save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "model.safetensors")
    config = ConfigFields({"quant_method": "awq", "bits": 4, "group_size": 32}, "config.json")
    weights = Weights(tmp_path, torch.float32)
    check_parts(read_checkpoint(config, weights), "a", OUTPUTS, INPUTS, 1)


def test_groups_are_made_finer_as_long_as_kernels_have_them(tmp_path: Path) -> None:
    case = FORMATS["gptq"]
    save_file({n: t.contiguous() for n, t in case.tensors.items()}, tmp_path / "model.safetensors")
    fields = ConfigFields(case.config, "config.json")
    checkpoint = read_checkpoint(fields, Weights(tmp_path, torch.float32))
    sizes = []
    for columns in COLUMNS:
        found = checkpoint.read("a", INPUTS, OUTPUTS, ALL, columns)
        sizes.append(found.group if isinstance(found, ByGroups) else None)
    assert sizes == [32, 32, 16, 8, None, 8]


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_parts_of_gguf(kind: str, tmp_path: Path) -> None:
    path, inputs = tmp_path / "a.gguf", 8 * INPUTS
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    for name in ("ffn_down", "attn_q"):  # of which the second's rows are stored in another order
        data = random_blocks(kind, OUTPUTS, inputs)
        writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=Kind[kind])
    writer.add_head_count(4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert is_gguf(path)
    for name in ("mlp.down_proj", "self_attn.q_proj"):
        checkpoint = GGUF(Weights(path, torch.float32))
        check_parts(checkpoint, f"model.layers.0.{name}", OUTPUTS, inputs, 8)


@pytest.mark.parametrize("name", ["attn", "mlp"])
@pytest.mark.parametrize("quantization", Quantization)
@pytest.mark.parametrize(("outputs", "inputs"), [(OUTPUTS, INPUTS), (256, 256)])
def test_parts_that_we_round(
    quantization: Quantization, name: str, outputs: int, inputs: int, tmp_path: Path
) -> None:
    """By scales of the whole weight, and with as many bits."""
    weight = torch.randn(outputs, inputs) * torch.linspace(0.1, 1, inputs)
    save_file({f"{name}.weight": weight}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path, torch.float32)
    linears, every = LinearReader(weights, Products(), quantization), torch.arange(outputs)
    whole = linears.linear(name, inputs, outputs, False).rows(every, torch.float32)
    assert not torch.equal(whole, weight)
    for columns in COLUMNS:
        found = linears.linear(name, inputs, outputs, False, columns).rows(every, torch.float32)
        assert torch.equal(found, whole[:, columns]), columns
    rows = {"a": torch.tensor([40, 3, 4]), "b": torch.tensor([5, 0, 17])}
    parts = dict.fromkeys(rows, outputs // 2)
    product = linears.joined([name], inputs, parts, False, rows).product
    found = product.rows(torch.arange(6), torch.float32)
    assert torch.equal(found, whole[torch.cat([*rows.values()])])
