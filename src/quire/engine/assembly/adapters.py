"""The adapters of an engine: what they take, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quire.capabilities.adapters.checkpoint import check_adapter
from quire.core.errors import ConfigError, ModelError
from quire.engine.adapters import AdapterShelf, AdapterSource
from quire.engine.assembly.ranks.adapters import read_on_all
from quire.engine.assembly.ranks.team import Team
from quire.engine.capacity import AdapterShare, size_of
from quire.engine.config import EngineConfig
from quire.execution.memory_budget import MemoryBudget
from quire.kernels.adapters import packed_bytes
from quire.kernels.dispatch import choose_kernels
from quire.models.adaptable import adaptable
from quire.models.base import Model
from quire.models.decoder import DecoderModel


def adapter_check(
    config: EngineConfig, model: Model, instruction_set: str
) -> Callable[[Path], AdapterSource]:
    """What finds the adapter in a directory, or raises a ModelError.

    ConfigError: the model's code is not our own.
    """
    if not isinstance(model, DecoderModel):
        raise ConfigError("enable_lora needs a model with code of its own here, and this has none")
    modules, kernels = adaptable(model), choose_kernels(model.dtype, instruction_set)
    num_layers, dtype = len(model.kv_shapes), model.dtype

    def check(path: Path) -> AdapterSource:
        if not path.is_dir():
            raise ModelError(f"adapter {path} is not a directory")
        found = check_adapter(path, modules, config.max_lora_rank)
        return AdapterSource(
            found.fingerprint,
            found.path,
            lambda: kernels.keep_adapter(found.read(), num_layers, dtype),
        )

    return check


def adapter_shelf(
    config: EngineConfig, model: Model, instruction_set: str, team: Team | None
) -> tuple[AdapterShelf, AdapterShare] | None:
    """The adapters that are asked for, none of them in memory yet; and what they may take there.

    team: the other ranks, which read them too.

    Raises:
        ConfigError: the model's code is not our own.
        ModelError: one cannot be served with this model.
    """
    if not config.enable_lora:
        return None
    check = adapter_check(config, model, instruction_set)

    def check_for_all(path: Path) -> AdapterSource:
        source = check(path)
        return source if team is None else read_on_all(team, source, lambda: list(shelf.weights))

    most_kept = config.max_cpu_loras or config.max_loras
    shelf = AdapterShelf(most_kept, check_for_all)
    for module in config.adapters:
        source = shelf.check(Path(module.path).expanduser())
        shelf.add(module.name, source, module.base_model_name)
    share = AdapterShare(
        config.max_loras, most_kept, config.max_lora_rank, _bytes_of_each(config, model)
    )
    return shelf, share


def without_adapters(budget: MemoryBudget, share: AdapterShare | None) -> MemoryBudget:
    """What they leave for the pool. ConfigError: there is not so much."""
    if share is None:
        return budget
    if share.num_bytes > budget.free:
        raise ConfigError(
            f"max_cpu_loras {share.most_kept} with max_lora_rank {share.max_rank} may take "
            f"{size_of(share.num_bytes)}, but only {size_of(budget.free)} are free: lower one of "
            "them"
        )
    return budget._replace(free=budget.free - share.num_bytes)


def _bytes_of_each(config: EngineConfig, model: Model) -> int:
    """Of an adapter of the largest rank, of all that can be adapted."""
    assert isinstance(model, DecoderModel), "others have no adapters"
    held = [one.held for one in adaptable(model).values()]
    rank = config.max_lora_rank
    return sum(packed_bytes(rank, inputs, outputs, model.dtype) for outputs, inputs in held)
