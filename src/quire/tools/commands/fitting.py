"""What fits into the memory that is free: for how many users, and which real models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.capacity import fill, limits_of
from quire.engine.config import EngineConfig
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.models.shape import CacheShape, ExpertShape, ModelShape
from quire.tools.commands.text import size, table

_TOKENS = 2048  # of the conversations by which users are counted
_LEAST = 4096  # tokens of the longest text; with fewer nobody is helped
_WEIGHTS_SHARE = 0.9  # of what is free: weights are read a tensor at a time, and rounded
_FORMS = (None, "int8", "int4")


_qwen3 = partial(
    ModelShape, head_size=128, vocab_size=151936, max_positions=40960, dtype="bfloat16"
)

SUGGESTED = (
    ModelShape("HuggingFaceTB/SmolLM2-135M-Instruct", 30, 576, 9, 3, 64, 1536, 49152, 8192,
               tied_embeddings=True, dtype="bfloat16"),
    _qwen3("Qwen/Qwen3-0.6B", 28, 1024, 16, 8, intermediate_size=3072, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-1.7B", 28, 2048, 16, 8, intermediate_size=6144, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-4B", 36, 2560, 32, 8, intermediate_size=9728, tied_embeddings=True),
    _qwen3("Qwen/Qwen3-8B", 36, 4096, 32, 8, intermediate_size=12288),
    _qwen3("Qwen/Qwen3-14B", 40, 5120, 40, 8, intermediate_size=17408),
    _qwen3("Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, intermediate_size=6144,
           experts=ExpertShape(128, 8, 768, 0, (True,) * 48)),
    _qwen3("Qwen/Qwen3-32B", 64, 5120, 64, 8, intermediate_size=25600),
)  # fmt: skip
"""Models that can be talked with and that anybody may download, the smallest first."""


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
    """memory, share: see ``free_for_models``. None: the model does not fit."""
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
    return min(limits.seqs_that_fit(tokens), limits.max_num_seqs)


class Suggestion(NamedTuple):
    command: str
    weight_bytes: int
    room: RoomLeft


def suggestions(memory: int, share: float, *, rounded: bool = True) -> Iterator[Suggestion]:
    """Of SUGGESTED those that fit, each in the form that loses least; ``rounded``: may be."""
    for shape in SUGGESTED:
        for form in _FORMS if rounded else _FORMS[:1]:
            of_form = shape if form is None else shape.rounded(form)
            taken, cache = of_form.weight_bytes, shape.cache()
            room = room_for(cache, taken, memory, share, _TOKENS)
            enough = room is not None and (room.longest or 0) >= min(_LEAST, cache.max_positions)
            if room is not None and enough and taken <= _WEIGHTS_SHARE * memory:
                flag = "" if form is None else f" --quantization {form}"
                yield Suggestion(f"quire serve {shape.name}{flag}", taken, room)
                break


def suggest(memory: int, share: float, *, rounded: bool = True) -> list[str]:
    """Lines about real models for who has named none."""
    found = list(suggestions(memory, share, rounded=rounded))
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
