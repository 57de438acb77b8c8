"""What fits into the memory that is free: for how many users, and which real models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.capacity import fill, limits_of, seqs_that_fit
from quire.engine.config import EngineConfig
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.kernels.compiled import KERNELS, why_missing
from quire.models.shape import CacheShape, ConfigFields, ModelShape, shape_of
from quire.tools.commands.text import size, table

_TOKENS = 2048  # of the conversations by which users are counted
_LEAST = 4096  # tokens of the longest text; with fewer nobody is helped
_WEIGHTS_SHARE = 0.9  # of what is free: weights are read a tensor at a time, and rounded
_FORMS = (None, "int8", "int4")


def _qwen(name: str, layers: int, hidden: int, values: int, **more: Any) -> ModelShape:
    """A Qwen3.5: of four layers one attends, the others keep states of ``values`` value heads."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
        "num_hidden_layers": layers, "hidden_size": hidden, "head_dim": 256,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * (layers // 4),
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": values, "vocab_size": 248320,
        "max_position_embeddings": 262144, **more,
    }  # fmt: skip
    return shape_of(f"Qwen/Qwen3.5-{name}", ConfigFields(config, name))


def _gemma(name: str, layers: int, whole: int, hidden: int, **more: Any) -> ModelShape:
    """A Gemma 4, of which one of ``whole`` layers has no window."""
    config = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16",
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "layer_types": [*["sliding_attention"] * (whole - 1), "full_attention"] * (layers // whole),
        "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144, "tie_word_embeddings": True, **more,
    }  # fmt: skip
    return shape_of(f"google/gemma-4-{name}-it", ConfigFields(config, name))


def _heads(queries: int, keys: int) -> dict[str, int]:
    return {"num_attention_heads": queries, "num_key_value_heads": keys}


def _small(keys: int, shared: int) -> dict[str, Any]:
    """What Gemmas have that are made for small machines."""
    return {
        **_heads(8, keys), "num_kv_shared_layers": shared, "use_double_wide_mlp": keys == 1,
        "hidden_size_per_layer_input": 256, "sliding_window": 512,
        "max_position_embeddings": 131072,
    }  # fmt: skip


_EXPERTS = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
_TIED = {"tie_word_embeddings": True}

_qwen3 = partial(
    ModelShape, head_size=128, vocab_size=151936, max_positions=40960, dtype="bfloat16"
)
_SMALLEST = ModelShape("HuggingFaceTB/SmolLM2-135M-Instruct", 30, 576, 9, 3, 64, 1536, 49152, 8192,
                       tied_embeddings=True, dtype="bfloat16")  # fmt: skip

SUGGESTED = (
    _SMALLEST,
    _qwen("0.8B", 24, 1024, 16, intermediate_size=3584, **_heads(8, 2), **_TIED),
    _qwen("2B", 24, 2048, 16, intermediate_size=6144, **_heads(8, 2), **_TIED),
    _qwen("4B", 32, 2560, 32, intermediate_size=9216, **_heads(16, 4), **_TIED),
    _gemma("E2B", 35, 5, 1536, **_small(1, 20)),
    _gemma("E4B", 42, 6, 2560, **_small(2, 18)),
    _qwen("9B", 32, 4096, 32, intermediate_size=12288, **_heads(16, 4)),
    _qwen("27B", 64, 5120, 48, intermediate_size=17408, **_heads(24, 4)),
    _gemma("31B", 60, 6, 5376, **_heads(32, 16), num_global_key_value_heads=4,
           attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=1024,
           max_position_embeddings=262144),
    _qwen("35B-A3B", 40, 2048, 32, **_EXPERTS, **_heads(16, 2)),
)  # fmt: skip
"""Models that can be talked with and that anybody may download, the smallest first."""

ON_GPUS = (
    _SMALLEST,
    _qwen3("Qwen/Qwen3-0.6B", 28, 1024, 16, 8, intermediate_size=3072, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-1.7B", 28, 2048, 16, 8, intermediate_size=6144, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-4B", 36, 2560, 32, 8, intermediate_size=9728, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-8B", 36, 4096, 32, 8, intermediate_size=12288),
    _qwen3("Qwen/Qwen3-14B", 40, 5120, 40, 8, intermediate_size=17408),
    _qwen3("Qwen/Qwen3-32B", 64, 5120, 64, 8, intermediate_size=25600),
)
"""The same where layers of several sizes and rounded weights are not computed."""


def free_for_models(is_gpu: bool) -> tuple[int, float]:
    """Bytes for weights and pool, and the share of the bytes left by weights for the pool."""
    if not is_gpu:
        from quire.execution.free_memory import free_memory

        return free_memory(), FREE_MEMORY_SHARE
    import torch

    free, total = torch.cuda.mem_get_info()
    return min(free, int(total * EngineConfig().gpu_memory_utilization)), 1.0


class RoomLeft(NamedTuple):
    """What ``quire serve`` has room for beside a model's weights, by its defaults.

    users: conversations of some length at once.
    """

    longest: int | None
    users: int
    users_at_longest: int


def room_for(
    cache: CacheShape, weight_bytes: int, memory: int, share: float, tokens: int
) -> RoomLeft | None:
    """The room beside a model's weights; None: it does not fit. See ``free_for_models``."""
    config = EngineConfig()
    budget = MemoryBudget(max(0, memory - weight_bytes), share)
    try:
        limits = fill(limits_of(config, cache), cache, config, budget)
    except ConfigError:
        return None
    longest = limits.max_model_len
    usual = min(tokens, longest or tokens)
    return RoomLeft(longest, _users(limits, usual), _users(limits, longest))


def _users(limits: EngineLimits, tokens: int | None) -> int:
    """How many conversations of that length the pool holds and the engine runs at once."""
    return min(seqs_that_fit(limits, tokens), limits.max_num_seqs)


class Suggestion(NamedTuple):
    command: str
    weight_bytes: int
    room: RoomLeft


def suggestions(memory: int, share: float, *, is_gpu: bool = False) -> Iterator[Suggestion]:
    """The models that fit, each in the form that loses least of those that run here."""
    rounded = not is_gpu and why_missing(KERNELS) is None
    for shape in ON_GPUS if is_gpu else SUGGESTED:
        for form in _FORMS if rounded else _FORMS[:1]:
            of_form = shape if form is None else shape.rounded(form)
            taken, cache = of_form.weight_bytes, shape.cache()
            room = room_for(cache, taken, memory, share, _TOKENS)
            enough = room is not None and (room.longest or 0) >= min(_LEAST, cache.max_positions)
            if room is not None and enough and taken <= _WEIGHTS_SHARE * memory:
                flag = "" if form is None else f" --quantization {form}"
                yield Suggestion(f"quire serve {shape.name}{flag}", taken, room)
                break


def suggest(memory: int, share: float, *, is_gpu: bool = False) -> list[str]:
    """Lines that suggest real models, for users who named none."""
    found = list(suggestions(memory, share, is_gpu=is_gpu))
    if not found:
        return [f"No model that we suggest fits into {size(memory)}, which are free here."]
    rows = [["command", "weights", "longest text", f"users at {_TOKENS:,}"]]
    for command, weight_bytes, room in found:
        longest = "any" if room.longest is None else f"{room.longest:,}"
        rows.append([command, size(weight_bytes), longest, f"{room.users:,}"])
    return [
        f"Real models that fit into the {size(memory)} that are free here; a smaller one answers "
        "sooner:",
        *table(rows),
    ]
