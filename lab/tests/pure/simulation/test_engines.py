"""Plans for the engine that will serve: by hand from what each engine's own sources say."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.engine.work import Work
from quire.tools.cli import main
from quire_lab.simulation import MACHINES, MODELS, Deployment
from quire_lab.simulation.catalogue.engines import ENGINES, Division
from quire_lab.simulation.planning.changes import changes
from quire_lab.simulation.planning.starting import ServerStart, manifest_of, start_of
from quire_lab.simulation.roofline import Roofline

MIB, GIB = 2**20, 2**30
LOAD = ["--input", "64", "--output", "8", "--requests", "4"]


def deployed(
    engine: str, model: str = "llama-3-8b", machine: str = "h100", machines: int = 1, **fields: Any
) -> Deployment:
    own = ENGINES[engine]
    config = EngineConfig(**own.settings(MACHINES[machine]))
    return Deployment(MODELS[model], MACHINES[machine], machines, config, engine=own, **fields)


def test_each_engine_says_what_it_is_taken_from() -> None:
    assert list(ENGINES) == ["quire", "vllm", "sglang", "trtllm", "llamacpp"]
    for engine in ENGINES.values():
        assert engine.sources and engine.not_measured


@pytest.mark.parametrize(
    ("engine", "machine", "block", "tokens", "seqs"),
    [
        ("vllm", "h100", 16, 8192, 1024), ("vllm", "a100-80", 16, 2048, 256),
        ("vllm", "l40s", 16, 2048, 256), ("sglang", "rtx-4090", 1, 2048, 128),
        ("sglang", "l40s", 1, 4096, 128), ("sglang", "h200", 1, 8192, 128),
        ("sglang", "b200", 1, 16384, 128), ("trtllm", "h100", 32, 8192, 2048),
        ("llamacpp", "rtx-4090", 1, 2048, 256), ("quire", "h100", 16, 2048, 128),
    ],
)  # fmt: skip
def test_settings_are_the_engine_s_where_none_are_given(
    engine: str, machine: str, block: int, tokens: int, seqs: int
) -> None:
    config = deployed(engine, machine=machine).config
    assert config.block_size == block
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (tokens, seqs)


def test_gpt_oss_is_kept_by_llama_cpp_as_in_its_files() -> None:
    """59.02 and 11.27 GiB, as llama-bench tells; 59 tokens a second on a DGX Spark."""
    large = deployed("llamacpp", "gpt-oss-120b", "dgx-spark")
    assert large.kept.weight_bytes == pytest.approx(59.02 * GIB, rel=0.005)
    small = deployed("llamacpp", "gpt-oss-20b", "rtx-3090")
    assert small.kept.weight_bytes == pytest.approx(11.27 * GIB, rel=0.005)
    step = Roofline(large.kept, large.paced, 1, 1).seconds(Work(0, 0, 0, 1, 128))
    assert 1 / step == pytest.approx(59.0, rel=0.3)
    with pytest.raises(ConfigError, match="it has: int8, int4, a GGUF file, mxfp4"):
        deployed("llamacpp", "minimax-m2", "b200", 2).limits()


def test_a_mac_s_gpu_gets_three_quarters_of_its_memory() -> None:
    mac = deployed("llamacpp", "gemma-4-26b-a4b", "m4-max-64")
    with pytest.raises(ConfigError, match=r"50\.5 GB can be used; .*--quantization int8 or int4"):
        mac.limits()
    rounded = replace(mac, model=mac.rounded("int4"))
    weights, steps = rounded.kept.weight_bytes, rounded.working_bytes
    assert rounded.kv_bytes == pytest.approx(48 * GIB - GIB - weights - steps, rel=1e-3)
    assert deployed("llamacpp", "gpt-oss-20b", "cpu").engine.memory_share(MACHINES["cpu"]) == 1


def test_pools_by_each_engine_s_rule() -> None:
    """Llama-3-8B, 16.06 GB of weights, on an H100 of 79.65 GiB."""
    memory, weights = MACHINES["h100"].memory, MODELS["llama-3-8b"].weight_bytes
    step = 8192 * 73728 * 2 + 512 * MIB  # of a token 73,728 numbers; what recorded steps take
    logits = 128256 * 16  # bytes for a sequence
    vllm = deployed("vllm")
    assert vllm.kv_bytes == int(memory * 0.92) - weights - step - 1024 * logits
    # 512 + 8,192 x 1.5 + 256 x 2 + 128 MiB: more than the 10 GiB that are left at the least.
    sglang = deployed("sglang")
    assert sglang.kv_bytes == memory - (512 + 12288 + 512 + 128) * MIB - weights
    few = sglang.configured(max_num_batched_tokens=2048)
    assert few.kv_bytes == memory - 10240 * MIB - weights
    trtllm = deployed("trtllm")
    assert trtllm.kv_bytes == int((memory - weights - step - 2048 * logits) * 0.9)
    llamacpp = deployed("llamacpp")
    working = 2048 * 73728 * 2 + 512 * MIB + 256 * logits
    assert llamacpp.kv_bytes == memory - 1024 * MIB - weights - working


def test_a_given_share_is_what_the_engine_means_by_it() -> None:
    memory, weights = MACHINES["h100"].memory, MODELS["llama-3-8b"].weight_bytes
    sglang = deployed("sglang")
    half = replace(sglang, engine=ENGINES["sglang"].with_share(0.5))
    assert half.kv_bytes == int(memory * 0.5) - weights  # --mem-fraction-static: both, no steps
    assert "--mem-fraction-static 0.500" in command(half)
    trtllm = deployed("trtllm")
    less = replace(trtllm, engine=ENGINES["trtllm"].with_share(0.45))
    assert less.kv_bytes == pytest.approx(trtllm.kv_bytes / 2, rel=1e-9)
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization: llama\.cpp has no such"):
        ENGINES["llamacpp"].with_share(0.5)


@pytest.mark.parametrize(
    ("engine", "form", "size", "head", "products"),
    [
        ("vllm", "int4", 0.5 + 2 / 128 + 0.5 / 128, 2, ""), ("vllm", "fp8", 1, 2, "fp8"),
        ("vllm", "int8", 1 + 2 / 128, 2, ""), ("sglang", "w8a8", 1, 2, "int8"),
        ("trtllm", "fp8", 1, 2, "fp8"), ("llamacpp", "int4", 4.8944 / 8, 4.8944 / 8, "int8"),
        ("llamacpp", "int8", 8.5008 / 8, 8.5008 / 8, "int8"),
    ],
)  # fmt: skip
def test_weights_have_the_engine_s_own_bytes(
    engine: str, form: str, size: float, head: float, products: str
) -> None:
    """Of GPTQ and AWQ 128 inputs share a scale of 16 bits, and a zero of as many bits as theirs."""
    base = deployed(engine)
    found = base.rounded(form).weight_form
    assert (found.mlp, found.head) == pytest.approx((size, head), rel=1e-3)
    assert found.products == products
    assert base.engine is not None
    kept = replace(base, model=base.rounded(form)).kept
    assert kept.weight_form.products == products


@pytest.mark.parametrize(
    ("engine", "machine", "forms"),
    [
        ("quire", "h100", ()), ("quire", "epyc-9654", ("int8", "int4", "w8a8", "w4a8")),
        ("vllm", "h100", ("int8", "int4", "w8a8", "fp8", "nvfp4")),
        ("vllm", "a100-80", ("int8", "int4", "w8a8", "fp8", "nvfp4")),  # by Marlin, in 16 bits
        ("sglang", "h100", ("int8", "int4", "w8a8", "fp8")),
        ("sglang", "b300", ("int8", "int4", "fp8", "nvfp4")),
        ("trtllm", "a100-80", ("int4",)), ("trtllm", "h100", ("int4", "fp8")),
        ("trtllm", "b200", ("fp8", "nvfp4")), ("llamacpp", "h100", ("int8", "int4")),
    ],
)  # fmt: skip
def test_forms_by_machine(engine: str, machine: str, forms: tuple[str, ...]) -> None:
    base = deployed(engine, machine=machine)
    assert ENGINES[engine].possible(MACHINES[machine]) == forms
    tried = [one.name for one in changes(base, _nothing(), False, {})]
    assert [name.split()[-1] for name in tried if name.startswith("weights in")] == list(forms)


def _nothing() -> Any:
    from types import SimpleNamespace

    none = SimpleNamespace(swaps=0, recomputes=0)
    return SimpleNamespace(preemptions=none, num_decisions={}, most_held=0, most_running=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deepseek-v3", "--engine", "llamacpp", "--machine", "b300", "--pipeline-parallel-size",
          "8"], "llama.cpp keeps no weights in fp8 on a b300; it has: int8, int4, a GGUF file"),
        (["deepseek-v3", "--engine", "quire", "--machine", "b300", "--tensor-parallel-size", "1"],
         "Quire keeps no weights in fp8 on a b300; it has: floats alone"),
        (["deepseek-v3", "--engine", "trtllm", "--machine", "a100-80", "--tensor-parallel-size",
          "16"], "weights in fp8: a a100-80 has no units for fp8 in TensorRT-LLM"),
        (["llama-3-8b", "--engine", "trtllm", "--machine", "b200", "--quantization", "int4"],
         "there is none for machines with units for fp4 in TensorRT-LLM; on a b200: fp8, nvfp4"),
        (["llama-3-8b", "--engine", "sglang", "--machine", "h100", "--quantization", "nvfp4"],
         "a h100 has no units for fp4 in SGLang"),
        (["llama-3-8b", "--engine", "vllm", "--machine", "h100", "--quantization", "w4a8"],
         "quantization w4a8: it has none in vLLM"),
        (["llama-3-8b", "--engine", "vllm", "--machine", "h100", "--kv-cache-dtype", "int8"],
         "kv_cache_dtype int8: vLLM has none; it has: auto, fp8"),
        (["llama-3-8b", "--engine", "vllm", "--machine", "epyc-9654"], "vLLM computes on no CPU"),
        (["llama-3-8b", "--engine", "quire", "--machine", "h100", "--tensor-parallel-size", "2"],
         "one engine of Quire uses one GPU; take replicas"),
        (["llama-3-8b", "--engine", "llamacpp", "--machine", "h100", "--block-size", "16"],
         "block_size: llama.cpp has none like it"),
        (["llama-3-8b", "--engine", "vllm", "--machine", "h100", "--enable-expert-parallel"],
         "enable_expert_parallel: llama-3-8b has no experts; take replicas"),
        (["qwen3-30b-a3b", "--engine", "llamacpp", "--machine", "h100",
          "--enable-expert-parallel"], "enable_expert_parallel: llama.cpp has none; leave it out"),
        (["qwen3-30b-a3b", "--machine", "h100", "--data-parallel-size", "2"], "give --engine"),
        (["qwen3-30b-a3b", "--engine", "vllm", "--machine", "h100", "--tensor-parallel-size", "2",
          "--data-parallel-size", "3"], "data_parallel_size must divide tensor_parallel_size, 2"),
        (["llama-3-8b", "--engine", "vllm", "--machine", "h100", "--pipeline-parallel-size", "2"],
         "pipeline_parallel_size: stages of vLLM are not simulated"),
        (["llama-3-8b", "--machine", "h100", "--manifest", "x"], "give --engine"),
    ],
)  # fmt: skip
def test_what_an_engine_has_not_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["plan", *arguments, *LOAD]) == 1
    assert said in capsys.readouterr().err


def test_a_plan_for_quire_is_for_what_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 1}  # fmt: skip
    whole = {"model_type": "interns1", "text_config": text, "vision_config": {"depth": 27}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    arguments = ["plan", str(tmp_path), "--machine", "b300", *LOAD]
    assert main([*arguments, "--engine", "quire"]) == 1
    assert "has no code of its own" in capsys.readouterr().err
    assert main([*arguments, "--engine", "vllm"]) == 0


def test_a_stored_form_is_had_where_the_form_is() -> None:
    """Of 4 bits without FP4 TensorRT-LLM has none on Blackwell."""
    form = replace(MODELS["llama-3-8b"].rounded("int4").weight_form, name="awq")
    awq = replace(MODELS["llama-3-8b"], form=form)
    trtllm = ENGINES["trtllm"]
    assert trtllm.kept(awq, MACHINES["h100"]).form == form
    with pytest.raises(ConfigError, match="weights in awq: there is none for machines with units"):
        trtllm.kept(awq, MACHINES["b200"])


def test_keys_and_values_by_engine() -> None:
    """Of a token of Llama-3-8B 2 x 32 x 8 vectors of 128, in 1,024 numbers a layer each."""
    numbers = 2 * 32 * 8 * 128
    fp8 = replace(MODELS["llama-3-8b"], kv_dtype="fp8")
    for engine in ("vllm", "sglang", "trtllm"):
        assert replace(deployed(engine), model=fp8).kept.kv_bytes_per_token == numbers
    quire = replace(deployed("quire"), model=fp8)
    assert quire.kept.kv_bytes_per_token == numbers + 2 * 32 * 8 * 4  # its scales
    for kind, size in (("int8", 34 / 32), ("int4", 18 / 32)):
        rounded = replace(MODELS["llama-3-8b"], kv_dtype=kind)
        kept = replace(deployed("llamacpp"), model=rounded).kept
        assert kept.kv_bytes_per_token == numbers * size
    wide = replace(MODELS["llama-3-8b"], dtype="float32")
    assert replace(deployed("llamacpp"), model=wide).kept.kv_bytes_per_token == 2 * numbers
    assert replace(deployed("vllm"), model=wide).kept.kv_bytes_per_token == 4 * numbers


def test_groups_that_attend_for_themselves() -> None:
    """DeepSeek-V3 on eight H200: its one vector a token is kept once, not eight times; what is no
    expert eight times."""
    plain = deployed("vllm", "deepseek-v3", "h200", 8)
    apart = replace(plain, division=Division(8, True))
    assert (plain.copies, apart.copies) == (8, 1)
    model = apart.kept
    experts = 58 * 256 * 3 * 7168 * 2048 * (1 + 4 / 128**2)
    beside = model.weight_bytes - experts
    own = int(MACHINES["h200"].memory * 0.92) * 8
    taken = own - apart.kv_bytes - apart.working_bytes * 8
    assert taken == pytest.approx(experts + 8 * beside, rel=1e-6)
    assert 5 < apart.slots / plain.slots < 8
    # A step that decodes: experts once, all else eight times; the cache once.
    work = Work(decode_seqs=256, decode_context=256 * 2000, samples=256)
    together, divided = (
        Roofline(model, plain.machine, 8, 16, division).parts(work)[1]
        for division in (plain.division, apart.division)
    )
    rate = plain.machine.bandwidth * plain.machine.bandwidth_share * 8
    chosen = 256 * (1 - (1 - 8 / 256) ** 256) / 256
    rows = 256 * 7168 * 2  # of the embedding
    read = beside - model.vocab_size * 7168 * 2 + rows
    kv = model.kv_bytes_per_token * (256 * 2000 + 256)
    assert divided * rate == pytest.approx(8 * read + chosen * experts + kv, rel=1e-3)
    assert together * rate == pytest.approx(read + chosen * experts + 8 * kv, rel=1e-3)


def test_stages_compute_one_after_another() -> None:
    """llama.cpp gives each GPU layers: memory grows, a step takes as long as on one."""
    one = deployed("llamacpp", "llama-3-8b", "rtx-4090")
    two = deployed("llamacpp", "llama-3-8b", "rtx-4090", 2, division=Division(in_stages=True))
    work = Work(decode_seqs=4, decode_context=4000, samples=4)
    hop = 4 * 4096 * 2 / two.machine.link_bandwidth + 1e-5
    seconds = [each.cost_model(1).seconds(work) for each in (one, two)]
    assert seconds[1] == pytest.approx(seconds[0] + hop)
    assert two.kv_bytes > 3 * one.kv_bytes


def started(deployment: Deployment, is_stored: bool = False) -> ServerStart:
    found = start_of(deployment, "meta-llama/X", is_stored)
    assert found is not None
    return found


def command(deployment: Deployment, is_stored: bool = False) -> str:
    return started(deployment, is_stored).command


def test_commands_have_what_the_plan_has() -> None:
    apart = Division(8, True)
    assert command(deployed("vllm", "deepseek-v3", "h200", 8, division=apart), is_stored=True) == (
        "vllm serve meta-llama/X --tensor-parallel-size 1 --data-parallel-size 8 "
        "--enable-expert-parallel --max-model-len 163840 --max-num-seqs 128 "
        "--max-num-batched-tokens 1024 --block-size 16 --gpu-memory-utilization 0.92"
    )
    sglang = deployed("sglang", "deepseek-v3", "h200", 8, division=apart)
    words = command(sglang, is_stored=True)
    assert words.startswith("python3 -m sglang.launch_server --model-path meta-llama/X")
    assert "--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8" in words
    assert "--quantization" not in words
    trtllm = deployed("trtllm", "deepseek-v3", "h200", 8, division=apart)
    fp8 = replace(trtllm, model=replace(trtllm.model, kv_dtype="fp8"))
    start = started(fp8, is_stored=True)
    assert "--tp_size 8 --ep_size 8" in start.command and "--enable_chunked_prefill" in start.words
    assert yaml.safe_load(start.file) == {
        "enable_attention_dp": True,
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": True, "tokens_per_block": 32},
    }
    quire = deployed("quire", machine="epyc-9654")
    assert "--quantization int4" in command(replace(quire, model=quire.rounded("int4")))
    assert "--gpu-memory-utilization" not in command(quire)


def test_a_command_names_the_checkpoint_that_is_needed() -> None:
    base = deployed("vllm")
    fp8 = started(replace(base, model=base.rounded("fp8")))
    assert fp8.words[-2:] == ("--quantization", "fp8") and not fp8.notes
    int4 = started(replace(base, model=base.rounded("int4")))
    assert "CHECKPOINT" in int4.words and int4.notes == ("CHECKPOINT: meta-llama/X as AWQ or GPTQ",)
    llama = deployed("llamacpp", machine="rtx-4090", machines=2, division=Division(in_stages=True))
    llama = replace(llama, model=replace(llama.model, kv_dtype="int8"))
    start = started(llama)
    assert start.notes == ("CHECKPOINT: meta-llama/X as GGUF, 16 bits",)
    assert "--cache-type-k q8_0 --cache-type-v q8_0" in start.command
    assert "--split-mode layer" in start.command
    assert f"--ctx-size {llama.limits().num_blocks} " in start.command  # of one token each


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_a_manifest_starts_the_same_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: str
) -> None:
    path = tmp_path / "plan.yaml"
    arguments = ["plan", "llama-3-8b", "--machine", "h100", "--engine", engine, *LOAD,
                 "--max-model-len", "512", "--json", "--manifest", str(path)]  # fmt: skip
    assert main(arguments) == 0
    values = json.loads(capsys.readouterr().out)["start"]
    parts = {one["kind"]: one for one in yaml.safe_load_all(path.read_text())}
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == values["command"] and values["engine"] == engine
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert container["ports"][0]["containerPort"] == ENGINES[engine].port
    labels = parts["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels == parts["Service"]["spec"]["selector"]
    assert container.get("workingDir") == ("/settings" if engine == "trtllm" else None)
    assert ("ConfigMap" in parts) == bool(values["settings_file"]) == (engine == "trtllm")
    assert shlex.join(values["command"]) in shlex.join(container["command"])


def test_a_manifest_is_refused_where_it_would_not_start() -> None:
    wide = deployed("vllm", "deepseek-v3", "h200", 16)
    with pytest.raises(ConfigError, match="16 x h200 are of several nodes"):
        manifest_of(wide, started(wide, is_stored=True), 1)
    amd = deployed("vllm", machine="mi300x")
    assert "amd.com/gpu: 1" in manifest_of(amd, started(amd), 2)
