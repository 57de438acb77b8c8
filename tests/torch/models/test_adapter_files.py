"""Adapters' files, read without trust: what is none, or of another base, is refused by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.capabilities.adapters import checkpoint, tensors
from quire.capabilities.adapters.checkpoint import check_adapter
from quire.capabilities.adapters.reading import HeldAdapters, ReadAdapter
from quire.capabilities.adapters.served import AdapterSource
from quire.core.errors import ModelError
from quire.kernels.adapters import Site
from quire.models.adaptable import Adaptable, Replaceable
from quire.models.linear import PlainLinear
from quire.models.parts import TensorPart

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
MODULES = {
    Q: Adaptable(0, Site.qkv, 0, 8, 12, PlainLinear(torch.ones(12, 8)), torch.float32),
    DOWN: Adaptable(1, Site.down, 0, 16, 8, PlainLinear(torch.ones(8, 16)), torch.float32),
}
TABLES = {
    "model.embed_tokens": Replaceable(False, (20, 8), False),
    "lm_head": Replaceable(True, (20, 8), False),
}
PREFIX = f"base_model.model.{Q}"


def save(directory: Path, **fields: Any) -> Path:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **fields}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        f"{PREFIX}.lora_A.weight": torch.ones(2, 8),
        f"{PREFIX}.lora_B.weight": torch.ones(12, 2),
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; supported: LORA"),
        ({"peft_type": "x" * 5000}, r"^.{,400}\.\.\.; supported: LORA$"),
        ({"bias": ["x"] * 5000}, r"^.{,400}\.\.\.; supported: none; or fold .*$"),
        ({"init_lora_weights": "pissa" * 1000}, r"^.{,400}\.\.\. changes the base's .*$"),
        ({"x" * 5000: 1}, r"^.{,400}\.\.\. is not computed here; fold .*$"),
        ({"use_dora": True}, "use_dora is true, but model.*q_proj has no lora_magnitude_vector"),
        ({"bias": "all"}, "bias is 'all'"),
        (
            {"modules_to_save": ["norm"]},
            "modules_to_save names norm; of .* are embed_tokens and lm_head; fold .*_and_unload",
        ),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is not computed here$"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is not computed here; fold"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's own weights"),
        ({"r": 2.5}, "r must be an integer"),
        ({"r": 3}, "has rank 3, but its tensors 2"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "a pattern that may take for ever"),
        ({"alpha_pattern": {"(": 1}}, "holds no regular expression"),
        ({"target_modules": ["k_proj"]}, "target_modules does not name"),
        ({"layers_to_transform": [1]}, "layers_to_transform leaves out"),
    ],
)
def test_configs_that_are_not_understood(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        check_adapter(save(tmp_path, **fields), MODULES, 16, TABLES)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{PREFIX}.lora_A.weight": torch.ones(2, 9)}, r"shape \(2, 9\).*\(2, 8\).*another base"),
        ({f"{PREFIX}.lora_B.weight": torch.ones(13, 2)}, "another base"),
        ({f"{PREFIX}.lora_B.weight": torch.ones(12, 3)}, "another base"),
        ({f"{PREFIX}.lora_A.weight": torch.ones(2, 8, dtype=torch.int8)}, "I8.*supported"),
        ({f"{PREFIX}.lora_magnitude_vector": torch.ones(12)}, "use_dora is false, but"),
        (
            {"base_model.model.lm_head.lora_A.weight": torch.ones(2, 8)},
            "of the head.*fold the",
        ),
        ({"base_model.model.x.modules_to_save.weight": torch.ones(2)}, "takes the place.*fold the"),
        ({"base_model.model.lm_head.weight": torch.ones(2, 8)}, "takes the place.*fold the"),
        ({"base_model.model.model.embed_tokens.weight": torch.ones(2, 8)}, "takes the place"),
        ({"base_model.model.x.experts.0.up.lora_A.weight": torch.ones(2, 8)}, "of experts"),
        ({"base_model.model.other.lora_A.weight": torch.ones(2, 8)}, "but not both"),
        ({"something": torch.ones(2)}, "no tensor of PEFT's"),
    ],
)
def test_tensors_that_do_not_fit(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path) / "adapter_model.safetensors"
    save_file({**load_file(path), **tensors}, path)
    with pytest.raises(ModelError, match=message):
        check_adapter(tmp_path, MODULES, 16)


@pytest.mark.parametrize(
    ("stored", "fields", "tied", "found"),
    [
        (("lm_head",), {"modules_to_save": ["lm_head"]}, False, (0, 1)),
        (("model.embed_tokens",), {"modules_to_save": ["embed_tokens"]}, False, (1, 0)),
        (("embed_tokens", "lm_head"), {}, False, (1, 1)),
        (("lm_head",), {"modules_to_save": ["lm_head"]}, True, (0, 1)),
        (("embed_tokens",), {"modules_to_save": ["embed_tokens"]}, True, (1, 0)),
        (
            ("embed_tokens",),
            {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
            True,
            (1, 1),
        ),
        (("embed_tokens",), {}, True, (1, 1)),  # the base's own was changed
    ],
)
def test_tables_in_the_place_of_the_models(
    stored: tuple[str, ...],
    fields: dict[str, Any],
    tied: bool,
    found: tuple[int, int],
    tmp_path: Path,
) -> None:
    path = save(tmp_path, **fields) / "adapter_model.safetensors"
    weights = {f"base_model.model.{name}.weight": torch.ones(20, 8) for name in stored}
    save_file({**load_file(path), **weights}, path)
    tables = {name: table._replace(tied=tied) for name, table in TABLES.items()}
    adapter = check_adapter(tmp_path, MODULES, 16, tables)
    assert adapter.table_weights == 160 * sum(found)
    _, embedding, head = adapter.read()
    assert (embedding is not None, head is not None) == found


def test_a_table_of_another_size_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, modules_to_save=["lm_head"]) / "adapter_model.safetensors"
    save_file({**load_file(path), "base_model.model.lm_head.weight": torch.ones(21, 8)}, path)
    with pytest.raises(ModelError, match=r"\(21, 8\).*\(20, 8\)"):
        check_adapter(tmp_path, MODULES, 16, TABLES)


DORA = {"use_dora": True}


def save_dora(directory: Path, magnitude: torch.Tensor, ending: str = "") -> Path:
    path = save(directory, **DORA) / "adapter_model.safetensors"
    named = {f"{PREFIX}.lora_magnitude_vector{ending}": magnitude}
    save_file({**load_file(path), **named}, path)
    return directory


@pytest.mark.parametrize("ending", ["", ".weight"])
def test_gains_are_magnitudes_by_the_lengths_of_changed_weights(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of three outputs; as PEFT names tensors, and as its module does."""
    monkeypatch.setattr(checkpoint, "_AT_ONCE", 24)
    torch.manual_seed(0)
    weight, bias = torch.randn(12, 8), torch.randn(12)
    module = MODULES[Q]._replace(product=PlainLinear(weight, bias))
    magnitude = torch.rand(12) + 0.5
    adapter = check_adapter(save_dora(tmp_path, magnitude, ending), {Q: module}, 16)
    (update,) = adapter.read().updates[0, Site.qkv]
    assert update.rescaling is not None
    gains, shifts = update.rescaling
    changed = weight.double() + 2 * torch.ones(12, 2).double() @ torch.ones(2, 8).double()
    expected = magnitude.double() / changed.norm(dim=1)
    torch.testing.assert_close(gains.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(shifts.double(), (1 - expected) * bias, rtol=1e-5, atol=1e-6)


def test_magnitudes_that_cannot_be_taken_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="another base"):
        check_adapter(save_dora(tmp_path, torch.ones(11)), MODULES, 16)
    divided = MODULES[Q]._replace(part=TensorPart(columns=slice(0, 4)))
    with pytest.raises(ModelError, match="divided among ranks"):
        check_adapter(save_dora(tmp_path, torch.ones(12)), {Q: divided}, 16)
    magnitude = torch.ones(12)
    magnitude[3] = float("inf")
    with pytest.raises(ModelError, match="no finite numbers"):
        check_adapter(save_dora(tmp_path, magnitude), MODULES, 16).read()
    opposite = MODULES[Q]._replace(product=PlainLinear(torch.full((12, 8), -4.0)))
    with pytest.raises(ModelError, match="leaves an output no weights"):
        check_adapter(save_dora(tmp_path, torch.ones(12)), {Q: opposite}, 16).read()
    tiny = MODULES[Q]._replace(product=PlainLinear(torch.full((12, 8), 1e-3 - 4.0)))

    with pytest.raises(ModelError, match="lora_magnitude_vector is beyond all numbers"):
        check_adapter(save_dora(tmp_path, torch.full((12,), 3e38)), {Q: tiny}, 16).read()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [f"{PREFIX}.lora_A.weight", f"{PREFIX}.lora_B.weight"])
def test_what_are_no_numbers_is_refused_before_anybody_asks_for_it(
    name: str, value: float, tmp_path: Path
) -> None:
    path = save(tmp_path) / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors[name][1, 1] = value
    save_file(tensors, path)
    with pytest.raises(ModelError, match=f"{name} holds no finite numbers"):
        check_adapter(tmp_path, MODULES, 16).read()


def test_a_rank_above_the_limit_and_a_projection_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has rank 2, above max_lora_rank, 1"):
        check_adapter(save(tmp_path), MODULES, 1)
    with pytest.raises(ModelError, match="no projection of this model"):
        check_adapter(tmp_path, {DOWN: MODULES[DOWN]}, 16)


def _with_header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(next(value for name, value in header.items() if name.endswith("lora_B.weight")))
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return changed


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "does not fill its bytes|begin where|tensors end"),
        (lambda content: content + b"x", "tensors end at"),
        (lambda content: b"", "its header has 0 bytes"),
        (lambda content: struct.pack("<Q", 2**60) + content[8:], "its header has"),
        (lambda content: content[:8] + b"[" * (len(content) - 8), "header is no JSON"),
        (_with_header(lambda one: one.update(shape=[2**60, 2])), "entry of .* is none"),
        (_with_header(lambda one: one.update(shape=[2**39, 2**39])), "does not fill its bytes"),
        (_with_header(lambda one: one.update(data_offsets=[0, 96])), "does not begin where"),
        (_with_header(lambda one: one.update(data_offsets=[-1, 5])), "entry of .* is none"),
        (_with_header(lambda one: one.update(dtype={})), "holds"),
    ],
)
def test_files_that_are_cut_garbled_or_lie(
    damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = save(tmp_path) / "adapter_model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=message):
        check_adapter(tmp_path, MODULES, 16)


def test_only_what_fits_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a file with holes, of any size, would keep a server at it for minutes."""
    digest, read = tensors._digest, list[str]()
    monkeypatch.setattr(tensors, "_digest", lambda file: read.append(file.name) or digest(file))
    save(tmp_path)
    with pytest.raises(ModelError, match="above max_lora_rank, 1"):
        check_adapter(tmp_path, MODULES, 1)
    with pytest.raises(ModelError, match="no projection of this model"):
        check_adapter(tmp_path, {DOWN: MODULES[DOWN]}, 16)
    assert not read
    check_adapter(tmp_path, MODULES, 16)
    assert len(read) == 1


def test_a_file_that_changes_while_it_is_checked(tmp_path: Path) -> None:
    path = save(tmp_path) / "adapter_model.safetensors"
    file = tensors.TensorFile(path)
    path.write_bytes(_with_header(lambda one: one.update(shape=[6, 4]))(path.read_bytes()))
    with pytest.raises(ModelError, match="has changed while it was loaded"):
        file.seal()


def test_the_fingerprint_is_of_all_that_a_text_depends_on(tmp_path: Path) -> None:
    path = save(tmp_path) / "adapter_model.safetensors"
    prints = [check_adapter(tmp_path, MODULES, 16).fingerprint]
    prints.append(check_adapter(save(tmp_path, lora_alpha=5), MODULES, 16).fingerprint)
    prints.append(check_adapter(save(tmp_path, use_rslora=True), MODULES, 16).fingerprint)
    save(tmp_path)
    again = check_adapter(tmp_path, MODULES, 16)
    assert again.fingerprint == prints[0]
    changed = load_file(path)
    changed[f"{PREFIX}.lora_A.weight"] = changed[f"{PREFIX}.lora_A.weight"] + 1
    save_file(changed, path)
    prints.append(check_adapter(tmp_path, MODULES, 16).fingerprint)
    assert len(set(prints)) == 4
    with pytest.raises(ModelError, match="has changed since it was loaded"):
        again.read()
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read again"):
        again.read()


def test_whatever_fails_on_another_rank_is_an_answer(tmp_path: Path) -> None:
    """Rank 0 waits for it."""

    def check(path: Path) -> AdapterSource:
        raise MemoryError(f"no room for {path.name}")

    answer = HeldAdapters(check).load(ReadAdapter(str(tmp_path / "a"), b"", []))
    assert answer.error == "no room for a"
