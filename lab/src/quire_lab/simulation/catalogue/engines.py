"""Engines by the facts on which a plan depends (``engines.json``), each with its sources.

How an engine schedules is not among them: plans take Quire's scheduler for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from quire.core.errors import ConfigError
from quire.models.files import read_json
from quire.models.shape import BYTES, ModelShape, WeightForm, modules_of
from quire_lab.simulation.catalogue.machines import GIB, Machine

_MIB = 2**20


@dataclass(frozen=True)
class EngineForm:
    """How an engine keeps rounded weights, or rounded keys and values.

    bytes: of a weight; None: as Quire rounds. whole: embeddings and head are rounded too.
    products: of which type, where activations are rounded. stored: of keys and values, the type by
    which ``ModelShape`` knows their bytes; None: as Quire keeps them.
    flag: what the engine calls it; None: the checkpoint says it. checkpoint: what that must be.
    kinds: of machines on which there is none else. needs: a type for which the machine must have
    units of its own; without: one for which it must not.
    """

    bytes: float | None = None
    whole: bool = False
    products: str = ""
    stored: str | None = None
    flag: str | None = None
    checkpoint: str | None = None
    kinds: tuple[str, ...] = ("cpu", "gpu")
    needs: str | None = None
    without: str | None = None

    def lacks(self, machine: Machine) -> str | None:
        """Why it cannot be had on a machine; None: it can."""
        if machine.kind not in self.kinds:
            return f"it is for {' and '.join(kind.upper() + 's' for kind in self.kinds)} only"
        if self.needs is not None and not machine.has_units(self.needs):
            return f"a {machine.name} has no units for {self.needs}"
        if self.without is not None and machine.has_units(self.without):
            return f"there is none for machines with units for {self.without}"
        return None


@dataclass(frozen=True)
class MemoryRule:
    """How an engine divides a machine's memory.

    share: of all memory that it takes. share_of_free: of what weights and steps leave, that is the
    pool's. setting: which of the two --gpu-memory-utilization is; "": neither.
    reserved_mib and those below it: what it leaves free. steps_outside: steps compute there.
    """

    share: float = 1.0
    share_of_free: float = 1.0
    setting: str = "share"
    steps_outside: bool = False
    reserved_mib: float = 0.0
    reserved_mib_a_token: float = 0.0  # of a step
    fewest_tokens: int = 0  # that are reserved for
    reserved_mib_a_recorded_seq: float = 0.0  # of the largest decode step that is recorded
    reserved_mib_a_machine: float = 0.0  # of the group
    least_mib_above: tuple[float, float] | None = None  # GiB of memory, and what is left free then

    def of_share(self, share: float) -> MemoryRule:
        """With a given share: nothing else is left free."""
        rest = MemoryRule(setting=self.setting, steps_outside=self.steps_outside)
        if self.setting == "share":
            return replace(rest, share=share)
        return replace(rest, share_of_free=share)

    def reserved(self, machine: Machine, tokens: int, recorded: int, machines: int) -> int:
        """Bytes of each machine that are left free."""
        taken = self.reserved_mib + self.reserved_mib_a_machine * machines
        taken += max(tokens, self.fewest_tokens) * self.reserved_mib_a_token
        taken += recorded * self.reserved_mib_a_recorded_seq
        if self.least_mib_above is not None and machine.memory > self.least_mib_above[0] * GIB:
            taken = max(taken, self.least_mib_above[1])
        return int(taken * _MIB)


class HeldOut(NamedTuple):
    """How far off four of five runs were that were held out, as shares; None: too few were.

    machine: "": any. mixtures: whether they were of mixtures of experts; None: of any models.
    """

    machine: str
    runs: int
    first_token: float | None = None
    end: float | None = None
    rate: float | None = None
    mixtures: bool | None = None

    @property
    def models(self) -> str:
        return {None: "", True: "of mixtures", False: "of dense models"}[self.mixtures]


DATA_SHEET = HeldOut("", 390, 0.864, 0.56, 0.688)
"""How far off four of five published runs are where nothing is fitted."""


class ErrorBar(NamedTuple):
    """Within which four of five published runs were, as shares, and why that is said here."""

    basis: str
    first_token: float
    rate: float

    def range(self, rate: float) -> tuple[float, float]:
        return rate / (1 + self.rate), rate * (1 + self.rate)


@dataclass(frozen=True)
class Attained:
    """What an engine attains of a GPU, fitted to published runs (``published.json``).

    machines: of which it was; none: of all that no other names. Engines have other kernels for each
    maker's GPUs.
    step_us: of each of a model's matrices, in any step; None: a step's fixed cost is the machine's.
    launch_us: of each of them, in a step with prompts: see ``Machine.launch_seconds``.
    piece_us: of each layer, in such a step that is recorded. narrow_share: see ``Machine``.
    first_token_ms: that a client waits for its first token beside the steps.
    recorded: tokens of the largest step with prompts whose kernels the engine records: of models
    in general, and of those with latent attention.
    errors: of what was held out, by kind of model and machine; the last one is of all of them.
    """

    compute_share: float = Machine.compute_share
    bandwidth_share: float = Machine.bandwidth_share
    narrow_share: float = 1.0
    step_us: float | None = None
    launch_us: float = 0.0
    piece_us: float = 0.0
    first_token_ms: float = 0.0
    recorded: tuple[int, int] = (0, 0)
    errors: tuple[HeldOut, ...] = ()
    machines: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Attained:
        errors = tuple(HeldOut(**one) for one in values.get("errors", ()))
        return cls(**{**_tuples(values), "errors": errors})

    @property
    def first_token_seconds(self) -> float:
        return 1e-3 * self.first_token_ms

    def error_on(self, machine: Machine, model: ModelShape, title: str) -> ErrorBar | None:
        """By its own runs there of models of the kind, or by those on other machines, or of others;
        None: there are none.
        """
        if not self.errors or machine.kind != "gpu":
            return None
        mixture, last = model.experts is not None, self.errors[-1]
        alike = {one.machine: one for one in self.errors if one.mixtures is mixture}
        near = alike.get("", last)
        found, basis = near, f"measured near: {title} on other machines"
        if machine.name in alike:
            found, basis = alike[machine.name], f"measured: {title} on this machine"
        rate = found.rate or found.end or DATA_SHEET.rate
        assert rate is not None and DATA_SHEET.first_token is not None
        first = found.first_token or near.first_token or last.first_token or DATA_SHEET.first_token
        of = " ".join(filter(None, (f"{basis}, {found.runs} runs", found.models)))
        return ErrorBar(f"{of} held out", first, rate)

    def on(self, machine: Machine, model: ModelShape) -> Machine:
        """The machine with these figures, for a model, unless it has its own."""
        own = (machine.compute_share, machine.bandwidth_share, machine.step_seconds)
        if machine.kind != "gpu" or own != (
            Machine.compute_share, Machine.bandwidth_share, Machine.step_seconds
        ):  # fmt: skip
            return machine
        matrices = _num_matrices(model)
        step = machine.step_seconds if self.step_us is None else 1e-6 * self.step_us * matrices
        return replace(
            machine,
            compute_share=self.compute_share,
            bandwidth_share=self.bandwidth_share,
            narrow_share=self.narrow_share,
            step_seconds=step,
            launch_seconds=1e-6 * self.launch_us * matrices / model.num_layers,
            piece_seconds=1e-6 * self.piece_us,
            recorded_tokens=self.recorded[model.latent is not None],
        )


class Division(NamedTuple):
    """How machines share a model beside tensor parallelism.

    attention_groups: of machines, each of which attends for requests of its own, with all weights
        but experts, which are divided among all machines. expert_parallel: experts are not cut.
    in_stages: each machine has layers of its own, and computes when those before it have.
    """

    attention_groups: int = 1
    expert_parallel: bool = False
    in_stages: bool = False


WHOLE = Division()


@dataclass(frozen=True)
class ServingEngine:
    """An engine that serves models.

    forms, kv: by the names that ``--quantization`` and ``--kv-cache-dtype`` have for them.
    stored: how checkpoints may be rounded. stored_as: the forms that some of them are, where those
    are not on all machines. stored_products: of which type, whatever a file says. stored_floats: by
    form, bytes of a weight that the checkpoint leaves in floats, in files of the engine's own.
    kv_default: of keys and values; "": the model's, or what the checkpoint asks for.
    defaults: settings, by machine; the first that fits one is its.
    not_measured: what a plan takes from Quire or from nobody. attained: of GPUs; the first that is
    for one is its.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    forms: Mapping[str, EngineForm]
    stored: tuple[str, ...]
    kv: Mapping[str, EngineForm]
    memory: MemoryRule
    defaults: tuple[Mapping[str, Any], ...]
    not_measured: tuple[str, ...]
    sources: tuple[str, ...]
    attained: tuple[Attained, ...] = ()
    stored_kinds: tuple[str, ...] = ("cpu", "gpu")
    stored_as: Mapping[str, str] = field(default_factory=dict)
    stored_products: str | None = None
    stored_floats: Mapping[str, float] = field(default_factory=dict)
    kv_default: str = ""
    own_code: bool = False  # of models, of which some have none
    one_gpu: bool = False
    expert_parallel: bool = False
    data_parallel_attention: bool = False
    in_stages: bool = False
    fixed: tuple[str, ...] = ()  # settings of Quire's that it has none for
    image: str | None = None
    port: int = 8000

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ServingEngine:
        made = _tuples(values)
        for name in ("forms", "kv"):
            made[name] = {form: EngineForm(**_tuples(v)) for form, v in values[name].items()}
        made["memory"] = MemoryRule(**_tuples(values["memory"]))
        made["attained"] = tuple(map(Attained.of, values.get("attained", ())))
        return cls(**made)

    def with_share(self, share: float | None) -> ServingEngine:
        """With what --gpu-memory-utilization says. ConfigError: it has nothing of the kind."""
        if share is None:
            return self
        if not self.memory.setting:
            raise ConfigError(f"gpu_memory_utilization: {self.title} has no such setting")
        return replace(self, memory=self.memory.of_share(share))

    def attained_of(self, machine: Machine) -> Attained:
        """Of a machine; as the data sheet says where nothing was fitted."""
        found = (one for one in self.attained if not one.machines or machine.name in one.machines)
        return next(found, Attained())

    def settings(self, machine: Machine) -> Mapping[str, Any]:
        """Its defaults on a machine, by the names that Quire's settings have."""
        found = self._defaults(machine)
        return {name: v for name, v in found.items() if name not in _CONDITIONS}

    def _defaults(self, machine: Machine) -> Mapping[str, Any]:
        for one in self.defaults:
            below, names = one.get("below_gib"), one.get("machines")
            if (below is None or machine.memory < below * GIB) and (
                names is None or machine.name in names
            ):
                return one
        raise AssertionError("the last fits all")

    def memory_share(self, machine: Machine) -> float:
        """Of all memory of a machine that it takes at most."""
        share: float = self._defaults(machine).get("memory_share", 1.0)
        return share if machine.is_cpu else self.memory.share

    def reserved(self, machine: Machine, tokens: int, machines: int) -> int:
        """Bytes of each machine that it leaves free, for steps of so many tokens."""
        few, many = self._defaults(machine).get("recorded_seqs", (0, 0))
        return self.memory.reserved(machine, tokens, few if machines < 4 else many, machines)

    def check(self, model: ModelShape, machine: Machine, machines: int, division: Division) -> None:
        """ConfigError, by name, for what it has not."""
        title = self.title
        if machine.kind not in self.kinds:
            raise ConfigError(f"engine: {title} computes on no {machine.kind.upper()}")
        if self.own_code and model.planned_only:
            raise ConfigError(f"engine: {title} has no code of its own for {model.name}")
        if self.one_gpu and machine.kind == "gpu" and machines > 1:
            raise ConfigError(
                f"tensor_parallel_size: one engine of {title} uses one GPU; take replicas"
            )
        for flag, asked, has in (
            ("data_parallel_size", division.attention_groups > 1, self.data_parallel_attention),
            ("enable_expert_parallel", division.expert_parallel, self.expert_parallel),
        ):
            if asked and not has:
                raise ConfigError(f"{flag}: {title} has none; leave it out")
            if asked and model.experts is None:
                raise ConfigError(f"{flag}: {model.name} has no experts; take replicas")
        if division.in_stages and not self.in_stages:
            raise ConfigError(
                f"pipeline_parallel_size: stages of {title} are not simulated, since several steps "
                "of disjoint batches are under way at once, and the scheduler plans one after the "
                "other; use tensor_parallel_size"
            )

    def kept(self, model: ModelShape, machine: Machine) -> ModelShape:
        """A model as it keeps it. ConfigError, by name, for forms that it has not."""
        form = model.form
        own = None if form is None else self.forms.get(self.stored_as.get(form.name, form.name))
        if form is not None and own is not None and (why := own.lacks(machine)) is not None:
            raise ConfigError(f"weights in {form.name}: {why} in {self.title}")
        if form is not None and form.name not in self.forms:
            stored = self.stored if machine.kind in self.stored_kinds else ()
            if self.own_code and model.quire_form is None and form.name in stored:
                raise ConfigError(
                    f"{self.title} does not read weights in {form.name} as {model.name} has them"
                )
            if form.name not in stored:
                has = dict.fromkeys((*self.possible(machine), *stored))
                raise ConfigError(
                    f"{self.title} keeps no weights in {form.name} on a {machine.name}; it has: "
                    f"{', '.join(has) or 'floats alone'}"
                )
            form = replace(form, products=self.stored_products or form.products)
            model = replace(model, form=self._with_floats(form, model.dtype))
        return self._with_kv(model, machine)

    def _with_floats(self, form: WeightForm, dtype: str) -> WeightForm:
        """With what files of its own have where the checkpoint has floats."""
        size, floats = self.stored_floats.get(form.name), BYTES[dtype]
        if size is None:
            return form
        attention, mlp, experts, head = (
            size if one == floats else one
            for one in (form.attention, form.mlp, form.experts, form.head)
        )
        return WeightForm(form.name, attention, mlp, experts, head, form.products, size)

    def rounded(self, model: ModelShape, name: str, machine: Machine) -> ModelShape:
        """The model with rounded weights. ConfigError, by name: it has no such form there."""
        form, why = self.forms.get(name), "it has none"
        if form is not None:
            why = form.lacks(machine) or ""
        if form is None or why:
            known = ", ".join(self.possible(machine)) or "none"
            raise ConfigError(
                f"quantization {name}: {why} in {self.title}; on a {machine.name}: {known}"
            )
        plain = model.rounded(name)
        if form.bytes is None:
            return plain
        size = form.bytes
        head = size if form.whole else BYTES[model.dtype]
        own = WeightForm(name, size, size, size, head, form.products, size if form.whole else None)
        return replace(plain, form=own)

    def possible(self, machine: Machine) -> tuple[str, ...]:
        """The forms of weights that it has on a machine."""
        return tuple(name for name, form in self.forms.items() if form.lacks(machine) is None)

    def keeps_kv(self, kind: str, machine: Machine) -> bool:
        return kind in self.kv and self.kv[kind].lacks(machine) is None

    def _with_kv(self, model: ModelShape, machine: Machine) -> ModelShape:
        kind = model.kv_dtype or self.kv_default
        if not kind:
            if model.stored_kv == "fp8" and not machine.has_units("fp8"):
                return replace(model, stored_kv=None)
            return model
        form = self.kv.get(kind)
        why = f"{self.title} has none" if form is None else form.lacks(machine)
        if form is None or why:
            raise ConfigError(f"kv_cache_dtype {kind}: {why}; it has: auto, {', '.join(self.kv)}")
        if form.stored is None:
            return model
        return replace(model, kv_dtype=None, stored_kv=form.stored)


@cache
def _num_matrices(model: ModelShape) -> int:
    """With which a step multiplies: a kernel or a few for each."""
    return sum(1 for _ in modules_of(model))


_CONDITIONS = ("below_gib", "machines", "recorded_seqs", "memory_share")


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


ENGINES: Mapping[str, ServingEngine] = {
    values["name"]: ServingEngine.of(values)
    for values in read_json(Path(__file__).with_name("engines.json"))
}
