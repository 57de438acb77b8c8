"""GGUF files of small models, written by the ``gguf`` package as llama.cpp's converters would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from torch import Tensor

Choose = Callable[[str], Kind]
"""The type in which a matrix is stored, by its name in transformers."""

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "phi": gguf.MODEL_ARCH.PHI2,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "granitemoeshared": gguf.MODEL_ARCH.GRANITE_MOE,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "youtu"), gguf.MODEL_ARCH.DEEPSEEK2),
}
_INTERLEAVED = ("llama", "mixtral", "granite", "granitemoe", "smollm3", "arcee", "ministral3",
                "granitemoeshared")  # fmt: skip
_WITH_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron")
_GATES_AND_UPS = "block_sparse_moe.input_linear.weight"  # of all experts in one
_SHARED_GATE_AND_UP = "shared_mlp.input_linear.weight"
_RULES = {  # config.json's names, and what the writer calls them
    "num_key_value_heads": "head_count_kv",
    "rms_norm_eps": "layer_norm_rms_eps",
    "layer_norm_eps": "layer_norm_eps",
    "norm_epsilon": "layer_norm_eps",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "norm_eps": "layer_norm_eps",
    "n_routed_experts": "expert_count",
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "moe_num_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "parallel_residual",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
}


# Where in a block the float16 numbers are; all others may be any bytes.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}
HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))


def random_blocks(kind: str, outputs: int, inputs: int, scale: float = 1.0) -> np.ndarray:
    """[outputs, bytes], of a rounded type; ``scale``: of the float16 numbers."""
    random = np.random.default_rng(0)
    weights, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = random.integers(0, 256, (outputs, inputs // weights, size), dtype=np.uint8)
    for at in HALVES.get(kind, (0,) if kind != "IQ1_M" else ()):
        numbers = (scale * random.standard_normal((*blocks.shape[:2], 1))).astype(np.float16)
        blocks[..., at : at + 2] = numbers.view(np.uint8)
    if kind == "IQ1_M":  # four bits of it in each of the last four words
        bits = random.standard_normal((*blocks.shape[:2], 1)).astype(np.float16).view(np.uint16)
        fours = (bits >> np.array([0, 4, 8, 12], np.uint16) & 15).astype(np.uint8)
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | fours << 4
    if kind == "MXFP4":
        blocks[..., :2] = random.integers(112, 132, (*blocks.shape[:2], 2), dtype=np.uint8)
    return blocks.reshape(outputs, -1)


def write_gguf(
    source: Path,
    target: Path,
    choose: Choose,
    vocabulary: Callable[[Any], None] | None = None,
    split: bool = True,
) -> dict[str, Tensor]:
    """Write the model in ``source``; what its tensors are after rounding, by transformers' names.

    vocabulary: adds a tokenizer.
    split: keys and values of latents are in tensors of their own, by head, as files since 2025
        have them.
    """
    config = json.loads((source / "config.json").read_text())
    kind = config["model_type"]
    architecture = _ARCHITECTURES.get(kind) or gguf.MODEL_ARCH[kind.upper()]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    write_config(writer, config, split)
    if vocabulary is not None:
        vocabulary(writer)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    rounded: dict[str, Tensor] = {}
    tensors = load_file(source / "model.safetensors")
    if kind == "gpt_oss":
        tensors = _unstacked(tensors)
    if "kv_lora_rank" in config and split:
        tensors = _by_heads(config, tensors)
    for whole, parts in _gathered(tensors).items():
        own, _, end = whole.rpartition(".")
        if end.endswith("correction_bias"):
            own, end = whole.removesuffix("_bias"), "bias"
        values = (
            np.stack(list(parts.values())) if ".experts." in own else next(iter(parts.values()))
        )
        wanted = choose(whole)
        if end == "bias" or values.ndim == 1 or own.endswith(("gate", "router", "router.layer")):
            wanted = Kind.F32
        elif values.shape[-1] % 32:
            wanted = Kind.F16
        change, back = _changes(config, f"{own}.{end}")
        data = gguf.quantize(change(values), wanted)
        if own.endswith("shared_expert_gate"):
            data = data[0]
        writer.add_tensor(f"{names.get_name(own)}.{end}", data, raw_dtype=wanted)
        after = np.ascontiguousarray(back(gguf.dequantize(data, wanted).reshape(values.shape)))
        for key, part in zip(parts, after if ".experts." in own else [after], strict=True):
            rounded[key] = torch.from_numpy(part)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return _stacked(rounded) if kind == "gpt_oss" else _whole_again(_joined(rounded))


def _by_heads(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of latents: what makes keys of them, turned round, and what makes values."""
    found: dict[str, Tensor] = {}
    widths = config["qk_nope_head_dim"], config["v_head_dim"]
    for name, tensor in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            found[name] = tensor
            continue
        keys, values = tensor.view(-1, sum(widths), tensor.shape[1]).split(widths, dim=1)
        found[name.replace("kv_b", "k_b")] = keys.transpose(1, 2).contiguous()
        found[name.replace("kv_b", "v_b")] = values.contiguous()
    return found


def _whole_again(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in tensors.items() if ".v_b_proj" not in name}
    for name in [name for name in found if ".k_b_proj" in name]:
        keys, values = found.pop(name).transpose(1, 2), tensors[name.replace("k_b", "v_b")]
        found[name.replace("k_b", "kv_b")] = torch.cat([keys, values], dim=1).flatten(0, 1)
    return found


def _unstacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of gpt-oss: an expert to a tensor, its gate and up apart, outputs before inputs."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, experts, part = name.partition(".experts.")
        if not experts:
            found[name + ".weight" * name.endswith("sinks")] = tensor
            continue
        end = "bias" if part.endswith("_bias") else "weight"
        whole = tensor if end == "bias" else tensor.transpose(1, 2)
        both = part.startswith("gate_up")
        parts = {"gate": whole[:, ::2], "up": whole[:, 1::2]} if both else {"down": whole}
        for own, stack in parts.items():
            for number, one in enumerate(stack):
                found[f"{layer}.experts.{number}.{own}_proj.{end}"] = one.contiguous()
    return found


def _stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    found = {name.replace("sinks.weight", "sinks"): tensor for name, tensor in tensors.items()}
    first = {name for name in found if ".experts.0." in name}
    count = len({name.split(".")[5] for name in found if ".experts." in name})

    def stack(name: str, own: str, end: str) -> Tensor:
        layer = name.partition(".experts.")[0]
        return torch.stack(
            [found.pop(f"{layer}.experts.{n}.{own}_proj.{end}") for n in range(count)]
        )

    for name in sorted(name for name in first if "up_proj" not in name):
        layer, end = name.partition(".experts.")[0], name.rpartition(".")[2]
        if "gate_proj" in name:
            both = torch.stack([stack(name, own, end) for own in ("gate", "up")], dim=2)
            whole, own = both.flatten(1, 2), "gate_up"
        else:
            whole, own = stack(name, "down", end), "down"
        turned = whole if end == "bias" else whole.transpose(1, 2)
        found[f"{layer}.experts.{own}_proj" + "_bias" * (end == "bias")] = turned.contiguous()
    return found


def _gathered(tensors: dict[str, Tensor]) -> dict[str, dict[str, np.ndarray]]:
    """By their names without an expert's number: tensors by their own names."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key in sorted(tensors, key=lambda key: [(len(part), part) for part in key.split(".")]):
        whole = re.sub(r"experts\.\d+\.", "experts.", key)
        values = tensors[key].float().numpy()
        if key.endswith(_GATES_AND_UPS):
            layer = key.removesuffix(_GATES_AND_UPS)
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                experts = {f"{part} {number} {key}": one for number, one in enumerate(half)}
                found[f"{layer}mlp.experts.{part}_proj.weight"] = experts
        elif key.endswith(_SHARED_GATE_AND_UP):
            layer = key.removesuffix(_SHARED_GATE_AND_UP)
            for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                found[f"{layer}mlp.shared_expert.{part}_proj.weight"] = {f"{part} 0 {key}": half}
        else:
            found.setdefault(whole, {})[key] = values
    return found


def _joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What ``_gathered`` took apart is one again."""
    found = {key: tensor for key, tensor in tensors.items() if " " not in key}
    for key in {key.split()[2] for key in tensors.keys() - found.keys()}:
        gates, ups = (
            torch.stack([one for name, one in tensors.items() if name.startswith(part)
                         and name.endswith(key)])
            for part in ("gate ", "up ")
        )  # fmt: skip
        both = torch.cat([gates, ups], dim=1)
        found[key] = both[0] if key.endswith(_SHARED_GATE_AND_UP) else both
    return found


_Change = Callable[[np.ndarray], np.ndarray]


def _changes(config: dict[str, Any], name: str) -> tuple[_Change, _Change]:
    """What the converter makes of a tensor, and the way back."""
    kind = config["model_type"]
    if kind in _INTERLEAVED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return partial(_interleaved, heads=heads), partial(_halves, heads=heads)
    if kind in _WITH_ONE and name.endswith("norm.weight"):
        return lambda x: x + np.float32(1), lambda x: x - np.float32(1)
    return lambda x: x, lambda x: x


def add_tokenizer(writer: Any, source: Path) -> None:
    """The byte-level one of the model in ``source``."""
    parts = json.loads((source / "tokenizer.json").read_text())
    special = {token["id"] for token in parts["added_tokens"]}
    tokens = sorted(parts["model"]["vocab"], key=parts["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in special else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in parts["model"]["merges"]])


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """A head's two halves become neighbours, as in llama.cpp's converter."""
    parts = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    parts = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def write_config(writer: gguf.GGUFWriter, config: dict[str, Any], split: bool = True) -> None:
    """Write what a ``config.json`` says."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    for name, rule in _RULES.items():
        if config.get(name) is not None:
            getattr(writer, f"add_{rule}")(config[name])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        if config["model_type"] != "gemma2":  # its files leave that to the code
            windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window_pattern(windowed)
    if "kv_lora_rank" in config:
        head_dim = config["qk_rope_head_dim"]
        _write_widths(writer, config, split)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_eos_token_id(config["eos_token_id"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "llama_4_scaling_beta" in rope:
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        if "mscale_all_dim" in rope:
            tenth = 0.1 if "kv_lora_rank" in config else 1.0
            writer.add_rope_scaling_yarn_log_mul(tenth * rope["mscale_all_dim"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config, head_dim))
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(original))))
        for length in ("long", "short"):
            values = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", values)


def _write_widths(writer: gguf.GGUFWriter, config: dict[str, Any], split: bool) -> None:
    """Of latents."""
    turned, value = config["qk_rope_head_dim"], config["v_head_dim"]
    key = config["qk_nope_head_dim"] + turned
    if split:
        writer.add_head_count_kv(1)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
        key, value = config["kv_lora_rank"] + turned, config["kv_lora_rank"]
    writer.add_key_length(key)
    writer.add_value_length(value)
    if config["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _llama3_divisors(config: dict[str, Any], head_dim: int) -> np.ndarray:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = AutoConfig.for_model(**config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](made, torch.device("cpu"))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / config["rope_parameters"]["rope_theta"] ** exponents
    return (plain / scaled).numpy()
