"""Writes docs/reference/families.md: which code runs each decoder that transformers knows.

python scripts/families.py [MODEL_TYPE ...]

Each family's own default config, which is a published model's, is made small, given random
weights, and compared with transformers in float32: a prompt in chunks of 7. It takes minutes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import multiprocessing
import re
import resource
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from quire.core.errors import QuireError
from quire.models.base import Model
from quire.models.loader import load_model
from quire.models.transformers_model import TransformersModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.small_models import CONFIGS, VOCAB_SIZE, save_model, save_whole

PAGE = Path(__file__).parents[1] / "docs/reference/families.md"
RECORD = PAGE.with_suffix(".json")
CHUNK, TOLERANCE = 7, 1e-4
_HOW = {
    "Quire": "On Quire's own code",
    "transformers": "Through transformers",
    "refused": "Refused, and why",
    "untried": "Not tried, and why",
}
_HEAD = """\
# Families

Which code runs each decoder that transformers {version} knows, by a run of `python
scripts/families.py`: the family's default config, which is a published model's, made small, with
random weights; its logits in float32 are compared with those of transformers, whose prompt is whole
where ours comes in chunks of 7. A family is served only if they agree within {tolerance:g}.
What follows from the code that runs it is in [Models](models.md).

Of models that see images (`…ForConditionalGeneration`) only the decoder is meant, and texts without
images.
"""
_LAYERS = 4
_SEES = "ForConditionalGeneration"
_TOO_LARGE = "its default config stays too large"
_MOST_BYTES, _MOST_SECONDS = 8 * 2**30, 90

# Fields by name, in whichever family has them, where the default is larger.
_SMALL: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp"), 96),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "attention_head_dim", "global_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 32),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "n_group": 2,
    "topk_group": 1,
    "rotary_dim": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 1,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_n_groups": 2,
    "n_groups": 2,
    "mamba_d_ssm": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_SEEING: Mapping[str, int] = {  # of what sees
    **dict.fromkeys(("depth", "num_layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_hidden_layers"), 2),
    **dict.fromkeys(("hidden_size", "embed_dim", "intermediate_size"), 32),
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
_BY_LAYER = (
    "layer_types", "mlp_layer_types", "layers_block_type", "intermediate_size",
    "activation_sparsity_pattern", "layer_rope_theta",
)  # fmt: skip
_OF_SINGLE_LAYERS = ("per_layer_config",)
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
# What else a small one needs to be whole.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "gemma3n_text": {"layer_types": _ALTERNATING, "num_kv_shared_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    **{
        model_type: {"rope_parameters": {**_PLAIN_ROPE, "mrope_section": [4, 2, 2]}}
        for model_type in ("glm4v_text", "glm_ocr_text", "qwen2_vl_text", "qwen2_5_vl_text")
    },
    "glm4v_moe_text": {
        "rope_parameters": {
            **_PLAIN_ROPE,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
        }
    },
    "laguna": {"num_attention_heads_per_layer": [4, 8, 4, 8]},
}
# What wholes leave out that their decoders by themselves do not, and no published one has.
_IN_WHOLES: Mapping[str, Mapping[str, Any]] = {"gemma3_text": {"final_logit_softcapping": None}}
_FIXED: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What became of a family."""

    architecture: str
    how: str  # a key of _HOW
    why: str = ""  # where it is refused or untried
    difference: float = 0.0  # the largest of all logits


def small(config: Any) -> Any:
    """The config with the sizes of a model that is random anyway, or that of the tests' model."""
    gallery = dict(reversed(CONFIGS.values()))
    if type(config).__name__ in gallery:
        return type(config)(**gallery[type(config).__name__])
    values = config.to_dict()
    heads = _first(values, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = values.get("num_key_value_heads")
    for name, size in _SMALL.items():
        if isinstance(values.get(name), int) and values[name] > size:
            values[name] = size
    if "qk_rope_head_dim" in values and "head_dim" in values:
        values["head_dim"] = values["qk_rope_head_dim"]  # as such families call it
    for name, value in _FIXED.items():
        if name in values:
            values[name] = value
    if isinstance(kv_heads, int):
        values["num_key_value_heads"] = 4 if kv_heads == heads else min(2, kv_heads)
    for name in _BY_LAYER:
        if isinstance(values.get(name), list) and values[name]:
            values[name] = _every_kind(values[name])
    for name in _OF_SINGLE_LAYERS:
        if values.get(name):
            values[name] = {f"{_LAYERS - 1:02}": {"head_dim": 24}}
    values.update(_MORE.get(values.pop("model_type"), {}))
    return type(config)(**values)


def small_whole(config: Any) -> Any:
    """The same of a config around a decoder's and that of what sees."""
    values = config.to_dict()
    del values["model_type"]
    text = config.get_text_config()
    inner = next(name for name in values if getattr(config, name, None) is text)
    for name, value in values.items():
        if name in ("vision_config", "audio_config") and isinstance(value, dict):
            values[name] = value | {
                own: size for own, size in _SEEING.items() if _is_above(value.get(own), size)
            }
            if value.get("layer_types"):
                values[name]["layer_types"] = value["layer_types"][: _SEEING["num_hidden_layers"]]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            values[name] = _FIXED["pad_token_id"]
    own = small(text).to_dict() | _IN_WHOLES.get(text.model_type, {})
    return type(config)(**{**values, inner: own})


def _is_above(value: Any, size: int) -> bool:
    return isinstance(value, int) and value > size


def _every_kind(of_layers: list[Any]) -> list[Any]:
    """Layers of each kind that there is, as many as there are layers."""
    kinds = list(dict.fromkeys(of_layers))
    chosen = of_layers[:_LAYERS]
    missing = [kind for kind in kinds if kind not in chosen]
    return [*chosen[: _LAYERS - len(missing)], *missing][:_LAYERS]


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def made(model_type: str, architecture: str, directory: Path, text: list[int]) -> Tensor:
    """Save the family, made small; what transformers computes of the text."""
    config = transformers.CONFIG_MAPPING[model_type]()
    if not architecture.endswith(_SEES):
        save_model(small(config), directory)
        return hf_logits(directory, text)
    torch.manual_seed(0)
    config = small_whole(config)
    whole = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    save_whole(whole, directory)
    with torch.inference_mode():
        logits: Tensor = whole(input_ids=torch.tensor([text])).logits[0]
    # Which Cohere's leave out, and their decoders by themselves do not.
    return logits * getattr(config.get_text_config(), "logit_scale", 1.0)


def tried(model_type: str, architecture: str) -> Found:
    """The family, made small, against transformers."""
    with tempfile.TemporaryDirectory() as place:
        directory, (text,) = Path(place), random_prompts(19)
        try:
            expected = made(model_type, architecture, directory, text)
        except Exception as error:
            return Found(architecture, "untried", _in_short(error))
        try:
            model: Model = load_model(directory)
            (found,) = PagedHarness(model).prefill([text], CHUNK)
        except QuireError as error:
            return Found(architecture, "refused", _in_short(error, place))
    how = "transformers" if isinstance(model, TransformersModel) else "Quire"
    return Found(architecture, how, "", float((found - expected).abs().max()))


def _in_short(error: Exception, place: str = "") -> str:
    text = str(error).replace(f"{place}/", "").strip() or type(error).__name__
    text = re.sub(r"^\w+ is not supported: ", "", text)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return _TOO_LARGE
    first, _, rest = text.partition("\n")
    return re.sub(r"\s+", " ", f"{first} {rest}" if first.endswith(":") else first)[:200].rstrip()


def tried_apart(model_type: str, architecture: str) -> Found:
    """The same in a process of its own, bounded: a config that stays large is not tried."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        with contextlib.redirect_stderr(io.StringIO()):
            its.send(tried(model_type, architecture))

    child = context.Process(target=run)
    child.start()
    its.close()
    with contextlib.suppress(EOFError):
        if mine.poll(_MOST_SECONDS):
            return mine.recv()
    child.kill()
    child.join()
    return Found(architecture, "untried", _TOO_LARGE)


def families(chosen: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The types and classes of all decoders, or of some, each class once."""
    wanted, seen = set(chosen), set[str]()

    def own_first(item: tuple[str, str]) -> tuple[bool, bool, str]:
        """Several types have a class; the best is the one of that name, or of its texts."""
        plain = item[0].removesuffix("_text").replace("_", "").replace("-", "")
        return item[1].casefold() != f"{plain}forcausallm", not item[0].endswith("_text"), item[0]

    names = {
        **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }  # fmt: skip
    for model_type, architecture in sorted(names.items(), key=own_first):
        if (not wanted or model_type in wanted) and architecture not in seen:
            seen.add(architecture)
            yield model_type, architecture


def page(results: Sequence[Found]) -> str:
    """What is written to docs."""
    by_how = {how: [one for one in results if one.how == how] for how in _HOW}
    lines = [_HEAD.format(version=transformers.__version__, tolerance=TOLERANCE)]
    for how, title in _HOW.items():
        lines.append(f"\n## {title}\n")
        found = by_how[how]
        if how in ("Quire", "transformers"):
            most = max((one.difference for one in found), default=0.0)
            lines.append(
                f"Of the logits of these {len(found)} none differs by more than {most:.0e}:\n"
            )
            lines.append(", ".join(f"`{one.architecture}`" for one in found) + ".")
        else:
            lines.append("| class | why |\n|---|---|")
            lines += [f"| `{one.architecture}` | {_cell(one.why)} |" for one in found]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")


def main() -> int:
    """Try, and write down; some alone are only told."""
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    tried("llama", "LlamaForCausalLM")  # processes of the others inherit what it imports
    results = []
    for model_type, architecture in families(sys.argv[1:]):
        found = tried_apart(model_type, architecture)
        results.append(found)
        print(f"{model_type}: {found.how} {found.difference:.1e} {found.why}", flush=True)
    if not sys.argv[1:]:
        RECORD.write_text(json.dumps([vars(found) for found in results], indent=1) + "\n")
        PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
