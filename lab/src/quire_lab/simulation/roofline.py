"""Seconds of a step from a model's shape and a machine's figures.

The roofline model (Williams, Waterman and Patterson, CACM 2009): a step takes as long as its
arithmetic or its memory traffic, whichever is longer, and what cannot hide behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from quire.core.protocol import RecoveryCosts
from quire.engine.work import Work
from quire.models.shape import BYTES, ModelShape, modules_of
from quire_lab.simulation.catalogue.engines import WHOLE, Division
from quire_lab.simulation.catalogue.machines import Machine

_LINK_SECONDS = 1e-5  # before an all-reduce moves its first byte
_NETWORK_SECONDS = 2e-5  # and before it moves one to another node


@dataclass(frozen=True)
class Roofline:
    """A model on a group of equal machines. division: how they share it, beside tensor parallelism.

    Groups that attend for requests of their own have equally many, and experts equally many tokens.
    """

    model: ModelShape
    machine: Machine
    tensor_parallel: int
    block_size: int
    division: Division = WHOLE

    def seconds(self, work: Work) -> float:
        machine, launches = self.machine, 0.0
        if work.prefill_tokens:
            recorded = work.num_tokens <= machine.recorded_tokens
            each = machine.piece_seconds if recorded else machine.launch_seconds
            launches = each * self.model.num_layers
        return machine.step_seconds + max(*self.parts(work), launches) + self._exchange(work)

    def moving(self, work: Work) -> float:
        """Seconds of what a step copies and swaps alone."""
        copied = 2 * work.copied_blocks * self.block_size * self._kv_bytes
        rate = self.machine.bandwidth * self.machine.bandwidth_share * self._together
        return copied / rate + self._swapping(work)

    def parts(self, work: Work) -> tuple[float, float]:
        """Seconds of arithmetic and of memory traffic."""
        machine, parallel = self.machine, self._together
        found = 1 + machine.block_tokens / self.block_size  # small blocks are read more slowly
        traffic = (
            self._weight_bytes_read(work.num_tokens)
            + self._kv_read(work) * found
            + work.num_tokens * self._kv_bytes
            + 2 * work.copied_blocks * self.block_size * self._kv_bytes
            + 2 * work.decode_seqs * sum(self.model.state_bytes)  # read and written
        )
        return (
            self._arithmetic(work) / (machine.compute_share * parallel),
            traffic / (machine.bandwidth * machine.bandwidth_share * parallel),
        )

    def _kv_read(self, work: Work) -> float:
        """Bytes that attention reads. A prompt's tokens together choose all that they see."""
        attended = self._attended(work.decode_seqs, work.decode_context)
        own = (work.prefill_context + attended) * self._kv_bytes
        return own + (work.decode_context - attended) * self._index_bytes

    def _attended(self, tokens: int, seen: float) -> float:
        """Tokens that so many attend to of all that they see, as if each saw as many: an index that
        chooses for texts of many lengths leaves no more than that.
        """
        index = self.model.index
        return seen if index is None else min(seen, tokens * index.most)

    def _arithmetic(self, work: Work) -> float:
        """Seconds of one machine at its peak."""
        model, machine = self.model, self.machine
        operations = self._attention(work) + work.samples * model.flops_per_sample
        return operations / machine.flops + work.num_tokens * model.flops_per_token / self._peak

    def _attention(self, work: Work) -> float:
        """Operations. Where an index chooses, a prompt's tokens attend to all that they see, with
        keys expanded, or to the chosen latents, whichever is less.
        """
        model, decoding = self.model, self.model.flops_per_decode_pair
        prefill = (
            work.prefill_pairs * model.flops_per_pair
            + (work.prefill_context - work.prefill_tokens) * model.flops_per_expansion
        )
        if model.index is not None:
            chosen = self._attended(work.prefill_tokens, work.prefill_pairs)
            prefill = min(prefill, chosen * decoding)
        attended = self._attended(work.decode_seqs, work.decode_context)
        drafts = self._attended(work.draft_tokens, work.draft_pairs)
        seen = work.prefill_pairs + work.decode_context + work.draft_pairs
        return prefill + (attended + drafts) * decoding + seen * model.flops_per_score

    @cached_property
    def _peak(self) -> float:
        """Operations per second in products with weights."""
        products = self.model.weight_form.products
        peak = self.machine.peak(products)
        return peak * self.machine.narrow_share if self.machine.has_units(products) else peak

    @property
    def _together(self) -> int:
        """Machines that compute at one time."""
        return 1 if self.division.in_stages else self.tensor_parallel

    @property
    def _group(self) -> int:
        return self._together // self.division.attention_groups

    def _weight_bytes_read(self, num_tokens: int) -> float:
        """By all machines: each group has all weights but experts."""
        read, groups = self.model.weight_bytes_read(num_tokens), self.division.attention_groups
        if groups == 1 or self.model.experts is None:
            return read
        chosen = self.model.experts.distinct(num_tokens) / self.model.experts.count
        return groups * read - (groups - 1) * chosen * self._expert_bytes

    @cached_property
    def _expert_bytes(self) -> float:
        params = sum(one.params for one in modules_of(self.model) if one.part == "experts")
        return params * self.model.weight_form.experts

    @cached_property
    def _kv_bytes(self) -> int:
        """Bytes of a token, over all machines: machines that share a head keep it each."""
        return self.model.kv_bytes_per_token * self.model.kv_copies(self._group)

    @cached_property
    def _index_bytes(self) -> int:
        """What of that is keys of an index."""
        return self.model.index_bytes_per_token * self.model.kv_copies(self._group)

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """Costs of a block's transfer and of a token's recomputation."""
        compute, _ = self.parts(Work(prefill_tokens=1))
        swap = block_size * self._kv_bytes / self._host_bandwidth
        return RecoveryCosts(swap, compute)

    @property
    def _host_bandwidth(self) -> float:
        return self.machine.host_bandwidth * self.tensor_parallel

    def _swapping(self, work: Work) -> float:
        return work.swapped_blocks * self.block_size * self._kv_bytes / self._host_bandwidth

    def _exchange(self, work: Work) -> float:
        """Swaps, and two all-reduces a layer (Megatron-LM).

        Where groups attend for themselves, the first is within each; the second is for experts:
        all rows are gathered, and their sums scattered.
        """
        seconds, groups = self._swapping(work), self.division.attention_groups
        if self.tensor_parallel == 1:
            return seconds
        size = work.num_tokens * self.model.hidden_size * BYTES[self.model.dtype]
        if self.division.in_stages:
            hops = self.tensor_parallel - 1
            return seconds + hops * (size / self.machine.link_bandwidth + _LINK_SECONDS)
        first = self.all_reduce(size / groups, self._group) if self._group > 1 else 0.0
        second = self.all_reduce(size, self.tensor_parallel)
        return seconds + self.model.num_layers * (first + second)

    def all_reduce(self, size: float, parallel: int) -> float:
        """Seconds to add up this many bytes of each machine: rings, in which every byte goes round
        twice.

        Over several nodes each sums its own first, then every machine a part of it over its own
        share of the network (NCCL's hierarchy).
        """
        machine = self.machine
        inside = min(parallel, machine.per_node)
        seconds = 0.0
        if inside > 1:
            seconds += 2 * size * (inside - 1) / inside / machine.link_bandwidth + _LINK_SECONDS
        nodes = parallel // inside
        if nodes > 1:
            part = 2 * size / inside * (nodes - 1) / nodes
            seconds += part / machine.network_bandwidth + _NETWORK_SECONDS
        return seconds
