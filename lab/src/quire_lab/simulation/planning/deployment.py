"""A model on a machine: what is left for the KV pool, and how it is set up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.capacity import (
    DEVICE,
    REQUESTS,
    adapter_share,
    fill,
    numbers_per_token,
    step_bytes,
)
from quire.engine.config import EngineConfig
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.models.shape import BYTES, CacheShape, ModelShape, modules_of
from quire_lab.contiguous import PAGED, limits_under
from quire_lab.simulation.catalogue.engines import (
    DATA_SHEET,
    WHOLE,
    Division,
    ErrorBar,
    ServingEngine,
)
from quire_lab.simulation.catalogue.machines import GB, MACHINES, Machine
from quire_lab.simulation.cost_model import CostModel, CostsWithDraft
from quire_lab.simulation.drafting import SimulatedDrafting, SmallerModel
from quire_lab.simulation.roofline import Roofline

_FLOAT = 4  # bytes; on CPUs narrower types are added up in it
_SHOWN = 6  # ways in which a model would fit


@dataclass(frozen=True)
class Deployment:
    """A model on ``tensor_parallel`` machines.

    config: the engine's settings; its pool is what weights, adapters and the largest step leave of
        the memory that may be used, unless kv_cache_memory_bytes says otherwise.
    costs: calibrated step times; None: the roofline's.
    drafting: how it drafts, and how well; None: not at all. A draft model is on one of the
        machines; the others keep as much free, for all have equally many blocks.
    kv_allocator: how KV memory is allocated, one of KV_ALLOCATORS.
    engine: that will serve; None: one as Quire is on CPUs, and as others are elsewhere.
    division: how the machines share the model, beside tensor parallelism.
    """

    model: ModelShape
    machine: Machine
    tensor_parallel: int = 1
    config: EngineConfig = field(default_factory=EngineConfig)
    costs: CostModel | None = None
    drafting: SimulatedDrafting | None = None
    kv_allocator: str = PAGED
    engine: ServingEngine | None = None
    division: Division = WHOLE

    def __post_init__(self) -> None:
        model, groups = self.model, self.division.attention_groups
        if self.engine is not None:
            self.engine.check(model, self.machine, self.tensor_parallel, self.division)
        if groups < 1 or self.tensor_parallel % groups:
            raise ConfigError(
                f"data_parallel_size must divide tensor_parallel_size, {self.tensor_parallel}, "
                f"got {groups}"
            )
        parallel = self.group
        if parallel < 1 or model.num_heads % parallel:
            raise ConfigError(
                f"tensor_parallel_size must divide the model's {model.num_heads} heads, "
                f"got {parallel}"
            )
        heads, nodes = model.num_kv_heads, self.machine.per_node
        if model.latent is None and heads % parallel and parallel % heads:
            sizes = ", ".join(
                str(n)
                for n in range(1, model.num_heads + 1)
                if model.num_heads % n == 0 and (heads % n == 0 or n % heads == 0)
            )
            raise ConfigError(
                f"tensor_parallel_size must divide the model's {heads} KV heads, or be a multiple "
                f"of them, got {parallel}; allowed: {sizes}"
            )
        machines = self.tensor_parallel
        if machines > nodes and machines % nodes:
            raise ConfigError(
                f"tensor_parallel_size above {nodes}, the {self.machine.name} of a node, must be a "
                f"multiple of it, got {machines}"
            )

    @property
    def group(self) -> int:
        """Machines that share each layer's attention."""
        if self.division.in_stages:
            return min(1, self.tensor_parallel)
        return self.tensor_parallel // self.division.attention_groups

    @property
    def name(self) -> str:
        """Name of its machines."""
        parallel, machine = self.tensor_parallel, self.machine.name
        return machine if parallel == 1 else f"{parallel} x {machine}"

    @cached_property
    def kept(self) -> ModelShape:
        """The model as the engine there keeps it."""
        return self._as_kept(self.model)

    def _as_kept(self, model: ModelShape) -> ModelShape:
        """As Quire keeps it on CPUs; elsewhere as it is stored, for that is what engines of GPUs
        do. Keys and values have 8 bits only where there are units for them.
        """
        if self.engine is not None:
            model = self.engine.kept(model, self.machine)
            return model.as_quire_keeps() if self.engine.own_code else model
        if self.machine.is_cpu:
            return model.as_quire_keeps()
        if model.stored_kv == "fp8" and self.machine.flops_fp8 is None:
            return replace(model, stored_kv=None)
        return model

    @property
    def working_bytes(self) -> int:
        """Bytes of the largest step on each machine, by the engine's own rule, and what a GPU keeps
        for its libraries and for recorded steps.
        """
        config, is_cpu = self.config, self.machine.is_cpu
        if self.engine is not None and self.engine.memory.steps_outside:
            return 0
        size = _FLOAT if is_cpu else BYTES[self.model.dtype]
        numbers = numbers_per_token(self.model, self.group)
        tokens = config.max_num_batched_tokens // self.division.attention_groups
        kept = REQUESTS if is_cpu else 0 if config.enforce_eager else DEVICE
        return step_bytes(config, tokens, numbers, self.model.vocab_size, size) + kept

    @property
    def adapter_bytes(self) -> int:
        """Bytes of adapters, over all machines, each of which has a half of each whole."""
        size, is_cpu = BYTES[self.model.dtype], self.machine.is_cpu
        share = adapter_share(self.model, self.config, size, rescaled=is_cpu)
        if share is None:
            return 0
        if is_cpu:
            return share.num_bytes * self.tensor_parallel
        return share.most_running * share.bytes_each * (self.tensor_parallel + 1) // 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool, over all machines; of heads that several keep, of one of them.

        Raises:
            ConfigError: the weights leave nothing, with what would fit; or less than the pool.
        """
        requested = self.config.kv_cache_memory_bytes
        if requested is not None:
            self._check_pool(requested)
            return requested
        total, engine = self._usable_bytes, self.engine
        each, beside = self.kept.kv_bytes_per_token, self._draft_kv_bytes
        room = total - self._taken_bytes
        if engine is not None and not engine.own_code:
            room = int(room * engine.memory.share_of_free)
        elif self.machine.is_cpu:  # a share of what weights leave, and all computed beside it
            free = room + self.working_bytes * self.tensor_parallel
            room = min(room, int(free * FREE_MEMORY_SHARE))
        apart = each * self.copies + beside * self.tensor_parallel
        left = room * (each + beside) // apart if apart else room  # all layers may keep states
        if left < (each + beside) * 16:
            raise ConfigError(self._does_not_fit(total))
        return left

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in the pool, a draft model's included."""
        return self.kept.kv_bytes_per_token + self._draft_kv_bytes

    @property
    def draft(self) -> SmallerModel | None:
        """The model that drafts."""
        return None if self.drafting is None else self.drafting.model

    @cached_property
    def _draft_kept(self) -> ModelShape | None:
        return None if self.draft is None else self._as_kept(self.draft.shape)

    @property
    def _draft_kv_bytes(self) -> int:
        return 0 if self._draft_kept is None else self._draft_kept.kv_bytes_per_token

    @property
    def copies(self) -> int:
        """Machines that keep the same keys and values."""
        return self.model.kv_copies(self.group)

    @property
    def dollars(self) -> float | None:
        """An hour, of all its machines; None where no price is known."""
        each = self.machine.price_per_hour
        return None if each is None else each * self.tensor_parallel

    @property
    def slots(self) -> int:
        """Tokens that the pool holds."""
        return self.kv_bytes // max(1, self.kv_bytes_per_token)

    @property
    def cache(self) -> CacheShape:
        """Memory of a token in the pool, layer by layer."""
        config = self.config
        own = self.kept.cache(None if config.window is not None else config.max_model_len)
        shape = self._draft_kept
        if shape is None:
            return own
        longest = own.max_positions if config.window is None else None
        try:
            return own.with_draft(shape.cache(longest))
        except ConfigError as error:
            raise ConfigError(f"speculative_config: model {shape.name}: {error}") from None

    @property
    def paced(self) -> Machine:
        """The machine, as far as the engine attains what its data sheet says."""
        if self.engine is None:
            return self.machine
        return self.engine.attained_of(self.machine).on(self.machine, self.model)

    @property
    def error(self) -> ErrorBar | None:
        """How far off rates and first tokens may be; None: costs were calibrated here."""
        if self.costs is not None:
            return None
        own = None
        if self.engine is not None:
            attained = self.engine.attained_of(self.machine)
            own = attained.error_on(self.machine, self.model, self.engine.title)
        assert DATA_SHEET.first_token is not None and DATA_SHEET.rate is not None
        basis = f"data sheet only: such figures of {DATA_SHEET.runs} runs on GPUs"
        return own or ErrorBar(basis, DATA_SHEET.first_token, DATA_SHEET.rate)

    def cost_model(self, block_size: int) -> CostModel:
        machine, draft = self.paced, self.draft
        parallel, division = self.tensor_parallel, self.division
        own = self.costs or Roofline(self.kept, machine, parallel, block_size, division)
        if draft is None:
            return own
        costs = draft.costs or Roofline(self._as_kept(draft.shape), machine, 1, block_size)
        return CostsWithDraft(own, costs)

    def configured(self, **changes: Any) -> Deployment:
        """The same with other settings of the engine."""
        return replace(self, config=replace(self.config, **changes))

    def rounded(self, name: str) -> ModelShape:
        """The model with rounded weights. ConfigError: the engine has no such form."""
        if self.engine is None:
            return self.model.rounded(name)
        return self.engine.rounded(self.model, name, self.machine)

    def under(self, kv_allocator: str) -> Deployment:
        """The same with KV memory given out in another way."""
        return replace(self, kv_allocator=kv_allocator)

    def limits(self) -> EngineLimits:
        """The limits that the real engine would have here."""
        config, cache = self.config, self.cache
        room = MemoryBudget(self.kv_bytes, 1.0)
        return fill(limits_under(self.kv_allocator, config, cache), cache, config, room)

    @property
    def _usable_bytes(self) -> int:
        """Bytes that may be used at all, over all machines."""
        machine, engine, machines = self.machine, self.engine, self.tensor_parallel
        if engine is not None:
            share = engine.memory_share(machine)
            left = engine.reserved(machine, self.config.max_num_batched_tokens, machines)
            return (int(machine.memory * share) - left) * machines
        share = 1.0 if machine.is_cpu else self.config.gpu_memory_utilization
        return int(machine.memory * share) * machines

    @property
    def _taken_bytes(self) -> int:
        """Bytes of weights, adapters and what is computed, over all machines."""
        kept, groups = self.kept, self.division.attention_groups
        weights = kept.weight_bytes_over(self.group) * groups
        if groups > 1:  # all groups together have the experts once
            experts = sum(one.params for one in modules_of(kept) if one.part == "experts")
            weights -= round((groups - 1) * experts * kept.weight_form.experts)
        draft = 0 if self._draft_kept is None else self._draft_kept.weight_bytes
        beside = (self.working_bytes + draft) * self.tensor_parallel
        return weights + self.adapter_bytes + beside

    def _check_pool(self, size: int) -> None:
        """A pool of a given size may take all that there is; a calibrated one has existed."""
        total = self.machine.memory * self.tensor_parallel
        if self.costs is None and size * self.copies > total - self._taken_bytes:
            copies = f" on each of {self.copies}" if self.copies > 1 else ""
            raise ConfigError(
                f"kv_cache_memory_bytes is {size:,}{copies}, but {self.tensor_parallel} x "
                f"{self.machine.name} have {total:,} bytes, of which weights and activations of "
                f"{self.model.name} take {self._taken_bytes:,}"
            )

    def _does_not_fit(self, total: int) -> str:
        model, machine = self.kept, self.machine
        weights = f"{model.weight_bytes / GB:.1f} GB in {model.weight_form.name}"
        draft = self._draft_kept
        if draft is not None:
            weights += f", those of {draft.name}, which drafts, {draft.weight_bytes / GB:.1f} GB"
        text = (
            f"{model.name} does not fit {self.tensor_parallel} x {machine.name}: its weights take "
            f"{weights}, and {total / GB:.1f} GB can be used"
        )
        forms = self._forms_that_fit()
        fits = [f"--quantization {' or '.join(forms)}"] if forms else []
        wider = (n for n in (2, 4, 8, 16, 32, 64) if n > self.tensor_parallel)
        fits += [f"--tensor-parallel-size {n}" for n in wider if self._fits(machine=machine, n=n)][
            :1
        ]
        like = (other for other in MACHINES.values() if other.is_tpu <= machine.is_tpu)
        fits += [other.name for other in like if self._fits(machine=other, n=1)]
        fits = [*fits[:_SHOWN], *(["and larger ones"] if len(fits) > _SHOWN else [])]
        return f"{text}; what would fit: {', '.join(fits) or 'none of the known machines'}"

    def _forms_that_fit(self) -> list[str]:
        """In which the weights would fit these machines, where the checkpoint has floats."""
        if self.model.form is not None:
            return []
        own = self.machine.forms if self.engine is None else self.engine.possible(self.machine)
        return [
            name
            for name in own
            if self._fits(model=self.rounded(name), machine=self.machine, n=self.tensor_parallel)
        ]

    def _fits(self, *, machine: Machine, n: int, model: ModelShape | None = None) -> bool:
        try:
            other = replace(self, model=model or self.model, machine=machine, tensor_parallel=n)
            return other._usable_bytes > 1.05 * other._taken_bytes
        except ConfigError:
            return False
