"""Models, machines and what is left for the KV pool: derived from shapes and data sheets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError, ModelError
from quire.engine.config import EngineConfig
from quire.engine.work import Work
from quire.models.shape import read_shape, rounded_form
from quire_lab.simulation import MACHINES, MODELS, Deployment, find_machine, find_model
from quire_lab.simulation.catalogue import machines
from quire_lab.simulation.catalogue.machines import Machine
from quire_lab.simulation.cost_model import decoding
from quire_lab.simulation.planning.changes import next_faster

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def write(directory: Path, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}))
    return path


@pytest.mark.parametrize(
    ("name", "billions"),
    [("opt-13b", 12.85), ("opt-66b", 65.7), ("opt-175b", 174.6), ("llama-7b", 6.74),
     ("llama-13b", 13.02), ("llama-3-8b", 8.03), ("llama-3-70b", 70.55),
     ("qwen2.5-0.5b", 0.494), ("qwen2.5-7b", 7.62), ("qwen2.5-72b", 72.7),
     ("llama-3.1-405b", 405.85), ("llama-4-scout", 107.77), ("llama-4-maverick", 400.7),
     ("mixtral-8x22b", 140.62), ("qwen3-235b-a22b", 235.1), ("gpt-oss-120b", 116.83),
     ("kimi-k2", 1026.4), ("deepseek-v2-lite", 15.71), ("glm-4.5-air", 106.85),
     ("kimi-k2-thinking", 1026.4), ("minimax-m2", 228.7), ("gemma-4-26b-a4b", 25.2),
     ("glm-4.7-flash", 29.94), ("qwen3.6-27b", 26.9), ("qwen3.6-35b-a3b", 34.66),
     ("deepseek-v3.2", 671.88), ("glm-5", 743.9), ("mimo-v2-flash", 308.8)],
)  # fmt: skip
def test_parameters_are_those_that_were_published(name: str, billions: float) -> None:
    assert MODELS[name].num_params == pytest.approx(billions * 1e9, rel=2e-3)


def test_an_index_keeps_a_key_beside_each_latent() -> None:
    """Of 512 + 64 and of 128 numbers; in 8 bits both have a scale, and beside 4 the key has 8."""
    for name, layers in (("deepseek-v3.2", 61), ("glm-5", 78)):
        model = MODELS[name]
        assert model.kv_bytes_per_token == layers * (576 + 128) * 2
        assert replace(model, kv_dtype="int8").kv_bytes_per_token == layers * (580 + 132)
        assert replace(model, kv_dtype="int4").kv_bytes_per_token == layers * (292 + 132)


def test_kv_bytes_of_a_token() -> None:
    assert MODELS["gpt-32x32x128"].kv_bytes_per_token == 512 * 1024
    assert MODELS["opt-13b"].kv_bytes_per_token == 800 * 1024  # PagedAttention, section 3
    # In 8 bits, each of the 40 x 2 x 40 vectors of 128 has a scale.
    assert replace(MODELS["opt-13b"], kv_dtype="int8").kv_bytes_per_token == 3200 * (128 + 4)


@pytest.mark.parametrize(
    ("model", "machine", "count", "slots"),
    [("opt-13b", "a100-40", 1, 15_700), ("opt-66b", "a100-40", 4, 9_700),
     ("opt-175b", "a100-80", 8, 60_100)],
)  # fmt: skip
def test_pools_are_about_those_of_the_paper(
    model: str, machine: str, count: int, slots: int
) -> None:
    """Table 1 says how many slots there were, not what else was in memory; no recorded steps."""
    config = EngineConfig(enforce_eager=True)
    deployment = Deployment(MODELS[model], MACHINES[machine], count, config)
    assert deployment.slots == pytest.approx(slots, rel=0.1)


def test_the_pool_is_what_the_settings_leave() -> None:
    """Llama-3-8B on 24 GiB: of a token 73,728 numbers of 2 bytes are there at once, of a sequence
    128,256 logits of 16, and an adapter of rank 16 has 41.9 million weights."""
    plain = Deployment(MODELS["llama-3-8b"], MACHINES["rtx-4090"])

    def pool(**settings: Any) -> int:
        return plain.configured(**settings).kv_bytes

    assert pool(max_num_batched_tokens=512) - pool(max_num_batched_tokens=16384) == (
        (16384 - 512) * 73728 * 2
    )
    assert pool(max_num_seqs=8) - pool(max_num_seqs=1024) == (1024 - 8) * 128256 * 16
    drafts = {"method": "ngram", "num_speculative_tokens": 7}
    drafted = plain.configured(max_num_seqs=8, speculative_config=drafts)
    assert pool(max_num_seqs=8) - drafted.kv_bytes == 8 * 7 * 128256 * 16
    adapters = {"enable_lora": True, "max_loras": 64, "max_lora_rank": 16}
    each = 16 * 32 * (4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096 + 3 * (4096 + 14336)) * 2
    assert pool() - pool(**adapters) == 64 * each == pytest.approx(5 * 2**30, rel=0.01)
    assert pool(enforce_eager=True) - pool() == 512 * 2**20  # recorded steps
    # Machines that share a model divide heads and MLPs among themselves.
    two = replace(plain, tensor_parallel=2)
    assert plain.working_bytes - two.working_bytes == 2048 * (73728 - 5 * 4096) // 2 * 2


def test_on_a_cpu_the_pool_is_half_of_what_weights_leave() -> None:
    """Unless computing needs more than the other half."""
    plain = Deployment(MODELS["llama-3-8b"], MACHINES["cpu"])
    free = plain.machine.memory - plain.model.weight_bytes
    assert plain.kv_bytes == free // 2
    wide = plain.configured(max_num_batched_tokens=500_000)
    assert wide.kv_bytes == free - wide.working_bytes < free // 2


def test_memory_is_what_drivers_report() -> None:
    """In MiB, as nvidia-smi and rocm-smi print it: some names count in GB, most in GiB."""
    told = {
        "a100-40": 40960, "a100-80": 81920, "h100": 81559, "h200": 143771, "b200": 183359,
        "gb200": 189471, "mi300x": 206141652992 / 2**20, "l4": 23034, "l40s": 46068, "a10": 23028,
        "t4": 15360, "rtx-4090": 24564, "rtx-5090": 32607, "rtx-pro-6000": 97887,
        "rtx-6000-ada": 49140, "b300": 275040, "gb300": 284208, "h100-nvl": 95830, "h20": 97871,
        "gh200": 97871, "h100-pcie": 81559, "rtx-3090": 24576, "rtx-a6000": 49140,
        "dgx-spark": 119.7 * 1024,
    }  # fmt: skip
    for name, size in told.items():
        assert MACHINES[name].memory / 2**20 == pytest.approx(size, rel=0.01), name


def test_a_model_from_its_config_alone(tmp_path: Path) -> None:
    shape = find_model(str(write(tmp_path)))
    known = MODELS["llama-3-8b"]
    assert shape.num_params == known.num_params
    assert shape.kv_bytes_per_token == known.kv_bytes_per_token
    assert find_model(str(tmp_path)) == shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"hidden_size": None}, "hidden_size is missing"), ({"num_hidden_layers": 0}, "at least 1"),
     ({"torch_dtype": "int3"}, "dtype is 'int3'"), ({"num_local_experts": 8}, "mixtures")],
)  # fmt: skip
def test_configs_that_say_too_little(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_shape(write(tmp_path, **changes))


def test_unknown_names_get_their_neighbours() -> None:
    with pytest.raises(ModelError, match=r"did you mean opt-13b\?"):
        find_model("opt-14b")
    with pytest.raises(ConfigError, match=r"did you mean a100-80\?"):
        find_machine("a100-81")


def test_names_as_people_type_them() -> None:
    known = MODELS["llama-3.1-8b"]
    for name in ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"):
        assert find_model(name) is known
    assert find_model("google/gemma-3-27b-it") is MODELS["gemma-3-27b"]
    with pytest.raises(ModelError, match=r"did you mean llama-3.1-8b or llama-3.1-70b or llama"):
        find_model("llama-3.1")
    with pytest.raises(ConfigError, match=r"did you mean a100-40 or a100-80\?"):
        find_machine("a100")
    assert find_model("Quire-demo").kv_bytes_per_token == 2 * 2 * 64 * 4 * 2


def test_a_machine_from_a_file(tmp_path: Path) -> None:
    figures = {"name": "mine", "memory_gib": 40, "tflops": 312, "bandwidth_gb": 1555}
    path = tmp_path / "mine.json"

    def found(**changes: Any) -> Machine:
        values = {**figures, **changes}
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
        return find_machine(str(path))

    machine, known = found(host_gb=25, link_gb=300, network_gb=25), MACHINES["a100-40"]
    assert replace(known, name="mine", flops_int8=None, watts=None) == machine
    assert found(memory_gib=None, memory_gb=24, step_ms=5).step_seconds == 0.005
    for changes, message in (
        ({"memory_gigs": 3}, "unknown key 'memory_gigs'; known: name, per_node"),
        ({"tflops": None}, "tflops is missing"),
        ({"memory_gb": 24}, "give one of memory_gib"),
        ({"tflops": -1}, "tflops must be a number above 0, got -1"),
        ({"tflops": "1"}, "tflops must be a number above 0, got '1'"),
        ({"per_node": 0}, "per_node must be a whole number above 0, got 0"),
        ({"is_cpu": 1}, "is_cpu must be true or false, got 1"),
        ({"compute_share": 2}, "compute_share must be at most 1"),
        ({"name": 3}, "name must be a text"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            found(**changes)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="does not hold a JSON object"):
        find_machine(str(path))


def test_every_machine_of_the_catalogue_has_sources() -> None:
    entries = json.loads(Path(machines.__file__).with_name("machines.json").read_text())
    assert len(entries) == len(MACHINES) and all(entry["sources"] for entry in entries)


def test_products_in_4_bits_are_as_fast_as_there_are_units_for_them() -> None:
    b200, h100 = MACHINES["b200"], MACHINES["h100"]
    assert b200.peak("fp4") == 9e15 == 2 * b200.peak("fp8")
    assert h100.peak("fp4") == h100.peak("") and MACHINES["mi355x"].peak("fp4") > 1e16
    model = MODELS["llama-3-70b"]
    both = (model, replace(model, form=rounded_form("nvfp4", model.weight_form)))
    prompt = Work(prefill_tokens=8192, prefill_pairs=1, prefill_context=8192)
    plain, faster = (Deployment(one, b200).cost_model(16).seconds(prompt) for one in both)
    assert (plain - 0.003) / (faster - 0.003) == pytest.approx(4, rel=0.01)


def test_nobody_is_sent_to_a_machine_that_other_engines_are_for() -> None:
    for machine in MACHINES.values():
        faster = next_faster(machine)
        assert faster is None or faster.is_like(machine), machine.name
    with pytest.raises(ConfigError) as raised:
        Deployment(MODELS["opt-66b"], MACHINES["l4"]).limits()
    assert "tpu" not in str(raised.value)


def test_what_does_not_fit_is_told_the_forms_in_which_it_would() -> None:
    two = Deployment(MODELS["qwen3.6-27b"], MACHINES["rtx-3090"], 2)
    with pytest.raises(ConfigError) as raised:
        two.limits()
    assert "what would fit: --quantization int8 or int4 or w8a8, --tensor-parallel-size 4" in str(
        raised.value
    )
    for form in ("int8", "int4", "w8a8"):
        assert replace(two, model=two.rounded(form)).limits().num_blocks
    stored = Deployment(MODELS["kimi-k2-thinking"], MACHINES["h100"], 8)
    with pytest.raises(ConfigError, match="would fit: --tensor-parallel-size 16"):
        stored.limits()  # of weights that are rounded already there is no other form


def test_what_does_not_fit_is_told_what_would() -> None:
    deployment = Deployment(MODELS["opt-66b"], MACHINES["a100-40"])
    with pytest.raises(ConfigError, match=r"opt-66b does not fit.*--tensor-parallel-size 4, b200"):
        deployment.limits()
    with pytest.raises(ConfigError, match="must divide the model's 40 heads"):
        Deployment(MODELS["opt-13b"], MACHINES["a100-40"], 3)


def test_a_step_takes_as_long_as_what_binds_it() -> None:
    deployment = Deployment(MODELS["llama-3-8b"], MACHINES["h100"])
    costs = deployment.cost_model(16)
    alone, many = costs.seconds(decoding(1, 100)), costs.seconds(decoding(64, 6400))
    assert many < 1.1 * alone  # the weights are read once for all: memory binds
    weights = 2 * (8.03e9 - 128256 * 4096) / (3350e9 * 0.8)  # one row of the embeddings
    assert alone == pytest.approx(weights + 0.003, rel=0.01)
    prefill = Work(prefill_tokens=4096, prefill_pairs=1, prefill_context=4096)
    twice = Work(prefill_tokens=8192, prefill_pairs=1, prefill_context=8192)
    growth = (costs.seconds(twice) - 0.003) / (costs.seconds(prefill) - 0.003)
    assert growth == pytest.approx(2, rel=0.01)  # arithmetic binds
    assert costs.seconds(Work(decode_seqs=1, swapped_blocks=1000)) > alone


def test_more_machines_share_the_work_and_pay_for_talking() -> None:
    model, machine = MODELS["llama-3-70b"], MACHINES["h100"]
    times = [
        Deployment(model, machine, count).cost_model(16).seconds(decoding(8, 8000))
        for count in (2, 4, 8)
    ]
    assert times[0] > times[1] > times[2] > times[0] / 4
