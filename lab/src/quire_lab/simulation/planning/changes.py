"""Changes of every setting that can be the limit, with their costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire_lab.contiguous import PAGED, name_of
from quire_lab.simulation.catalogue.engines import Division
from quire_lab.simulation.catalogue.machines import MACHINES, Machine
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.result import SimulationResult

BLOCK_SIZES = (8, 16, 32, 64, 128)


class Price(Enum):
    """The kind of cost of a change."""

    NOTHING = "a setting"
    ACCURACY = "some accuracy"
    MONEY = "hardware"


class Change(NamedTuple):
    """One setting, changed alone.

    deployment: with it. replicas: their number, behind a router with this ``routing``.
    why: its effect, as the end of a sentence that begins with "because".
    same: why it is known without a simulation that it changes nothing.
    further: more of the same, tried if this much is better than nothing.
    """

    knob: str
    name: str
    price: Price
    why: str
    deployment: Deployment
    replicas: int = 1
    routing: str | None = None
    same: str | None = None
    further: Change | None = None

    @property
    def machines(self) -> int:
        return self.replicas * self.deployment.tensor_parallel

    @property
    def dollars(self) -> float | None:
        """Dollars per hour; None: the price is unknown."""
        each = self.deployment.dollars
        return None if each is None else each * self.replicas


class Changed(NamedTuple):
    """The effect of a change: requests per second, and how many times as many as without it.

    Both are 0 if it is worse than nothing: how much worse is not searched.
    refused: why it is impossible. like: another routing of as many replicas that is as good.
    """

    change: Change
    rate: float
    gain: float
    refused: str | None = None
    like: str | None = None


def changes(
    deployment: Deployment, beyond: SimulationResult, shares: bool, prices: Mapping[str, float]
) -> Iterator[Change]:
    """All changes except replicas, for which see ``replicas.py``.

    beyond: the result of a rate that is too high. shares: whether prompts begin alike.
    prices: dollars per hour, by name of a machine.
    """
    fixed = () if deployment.engine is None else deployment.engine.fixed
    for change in _settings(deployment, beyond, shares):
        if change.knob not in fixed:
            yield change
    if deployment.costs is None:  # else times of steps are known of this machine and model alone
        yield from _groups(deployment)
        yield from _forms(deployment)
        yield from _machines(deployment, prices)


def _settings(base: Deployment, beyond: SimulationResult, shares: bool) -> Iterator[Change]:
    limits, free = base.limits(), Price.NOTHING
    yield from _batched_tokens(base)
    gave_way = beyond.preemptions.swaps + beyond.preemptions.recomputes > 0
    waits = gave_way or beyond.num_decisions.get("wait", 0) > 0
    yield from _sequences(base, beyond)
    slots = limits.num_blocks * limits.block_size
    for size in BLOCK_SIZES if (name_of(limits) == PAGED) else ():
        if size == limits.block_size or size > slots:
            continue
        # Each sequence wastes less than a block.
        room = beyond.most_held + size * beyond.most_running <= 0.95 * slots
        same = None if waits or shares or not room else "no request waits for a block"
        why = f"{'less' if size < limits.block_size else 'more'} of a block stays empty"
        other = base.configured(block_size=size)
        yield Change("block_size", f"block size {size}", free, why, other, same=same)
    if (name_of(limits) == PAGED) and limits.enable_prefix_caching != shares:
        caching = not limits.enable_prefix_caching
        name, why = f"prefix caching {'on' if caching else 'off'}", "prompts begin alike"
        other = base.configured(enable_prefix_caching=caching)
        same = None if shares or gave_way else "no two prompts begin alike"
        yield Change("enable_prefix_caching", name, free, why, other, same=same)
    if not limits.num_host_blocks:
        why = "preempted requests come back without being recomputed"
        other = base.configured(swap_space=64.0, preemption_mode="auto")
        same = None if gave_way else "no request is preempted"
        yield Change("swap_space", "64 GiB of swap space", free, why, other, same=same)


def _batched_tokens(base: Deployment) -> Iterator[Change]:
    """Half as many in a step, or twice; and so on, while that helps."""
    knob, own = "max_num_batched_tokens", base.config.max_num_batched_tokens
    for factors, why in (
        ((1 / 8, 1 / 4, 1 / 2), "shorter chunks of prompts hold up others' tokens less"),
        ((8, 4, 2), "a prompt needs fewer steps"),
    ):
        further: Change | None = None
        for factor in factors:
            tokens = max(1, int(own * factor))
            other = base.configured(max_num_batched_tokens=tokens)
            name = f"{knob} {tokens:,}"
            further = Change(knob, name, Price.NOTHING, why, other, further=further)
        if further is not None:
            yield further


def _sequences(base: Deployment, beyond: SimulationResult) -> Iterator[Change]:
    knob, most = "max_num_seqs", base.config.max_num_seqs
    same = None if beyond.most_running >= most else f"no more than {beyond.most_running:,} run"
    other = base.configured(max_num_seqs=2 * most)
    yield Change(knob, f"{knob} {2 * most:,}", Price.NOTHING, "more run at once", other, same=same)
    fewer = 1 << max(0, (min(most, beyond.most_running) - 1).bit_length() - 1)
    if fewer < most:
        why = "steps of fewer sequences are shorter"
        other = base.configured(max_num_seqs=fewer)
        yield Change(knob, f"{knob} {fewer:,}", Price.NOTHING, why, other)


def _forms(base: Deployment) -> Iterator[Change]:
    """Other forms of weights, and of keys and values."""
    model, price, engine = base.model, Price.ACCURACY, base.engine
    if model.form is None:
        for name in base.machine.forms if engine is None else engine.possible(base.machine):
            other = replace(base, model=base.rounded(name))
            products = other.model.weight_form.products
            faster = "products in fewer bits are faster, and " if products else ""
            why = f"{faster}less is read in each step"
            yield Change("quantization", f"weights in {name}", price, why, other)
    if model.kv_dtype is None and base.kept.stored_kv in (None, model.dtype, "float16"):
        eight = "fp8" if engine is None or "fp8" in engine.kv else "int8"
        other = replace(base, model=replace(model, kv_dtype=eight))
        if engine is not None and not engine.keeps_kv(eight, base.machine):
            return
        why = "the pool holds twice as many tokens"
        yield Change("kv_cache_dtype", "KV cache in 8 bits", price, why, other)


def _groups(base: Deployment) -> Iterator[Change]:
    """Attention in as many groups as there are machines."""
    engine, machines = base.engine, base.tensor_parallel
    if engine is None or not engine.data_parallel_attention or base.model.experts is None:
        return
    if machines > base.division.attention_groups:
        division = Division(machines, True)
        other = replace(base, division=division)
        name, why = f"attention in {machines} groups", "each keeps its own requests' cache alone"
        yield Change("data_parallel_size", name, Price.NOTHING, why, other)


def _machines(base: Deployment, prices: Mapping[str, float]) -> Iterator[Change]:
    price, machine = Price.MONEY, base.machine
    for parallel in (2, 4, 8):
        try:
            other = replace(base, tensor_parallel=parallel * base.tensor_parallel)
        except ConfigError:
            continue
        number = other.tensor_parallel
        why = f"{number} machines share each step"
        name = f"tensor parallel {number}"
        yield Change("tensor_parallel_size", name, price, why, other)
        break
    faster = next_faster(machine)
    if faster is not None:
        other = replace(base, machine=priced(faster, prices))
        number = base.tensor_parallel
        name = f"{faster.name} for {machine.name}" + (f", {number} of each" * (number > 1))
        yield Change("machine", name, price, "its steps are shorter", other)


def priced(machine: Machine, prices: Mapping[str, float]) -> Machine:
    """The machine with its given price, if there is one."""
    return replace(machine, price_per_hour=prices.get(machine.name.lower(), machine.price_per_hour))


def next_faster(machine: Machine) -> Machine | None:
    """The smallest machine of the catalogue that is above this one in everything."""
    above = [
        other
        for other in MACHINES.values()
        if other.name != machine.name
        and other.is_like(machine)
        and other.flops >= machine.flops
        and other.bandwidth >= machine.bandwidth
        and other.memory >= machine.memory
    ]
    return min(above, key=lambda other: other.flops * other.bandwidth, default=None)
