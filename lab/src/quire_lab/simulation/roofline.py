"""Seconds of a step from a model's shape and a machine's figures.

The roofline model (Williams, Waterman and Patterson, CACM 2009): a step takes as long as its
arithmetic or its memory traffic, whichever is longer, and what cannot hide behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from quire.core.protocol import RecoveryCosts, Work
from quire.models.shape import BYTES, ModelShape
from quire_lab.simulation.catalogue.machines import Machine

_LINK_SECONDS = 1e-5  # before an all-reduce moves its first byte
_NETWORK_SECONDS = 2e-5  # and before it moves one to another node


@dataclass(frozen=True)
class Roofline:
    """A model on a tensor-parallel group of equal machines."""

    model: ModelShape
    machine: Machine
    tensor_parallel: int
    block_size: int

    def seconds(self, work: Work) -> float:
        return self.machine.step_seconds + max(self.parts(work)) + self._exchange(work)

    def moving(self, work: Work) -> float:
        """Seconds of what a step copies and swaps alone."""
        copied = 2 * work.copied_blocks * self.block_size * self._kv_bytes
        rate = self.machine.bandwidth * self.machine.bandwidth_share * self.tensor_parallel
        return copied / rate + self._swapping(work)

    def parts(self, work: Work) -> tuple[float, float]:
        """Seconds of arithmetic and of memory traffic."""
        machine, parallel = self.machine, self.tensor_parallel
        found = 1 + machine.block_tokens / self.block_size  # small blocks are read more slowly
        kv = (work.prefill_context + work.decode_context) * found + work.num_tokens
        traffic = (
            self.model.weight_bytes_read(work.num_tokens)
            + kv * self._kv_bytes
            + 2 * work.copied_blocks * self.block_size * self._kv_bytes
            + 2 * work.decode_seqs * sum(self.model.state_bytes)  # read and written
        )
        return (
            self._arithmetic(work) / (machine.compute_share * parallel),
            traffic / (machine.bandwidth * machine.bandwidth_share * parallel),
        )

    def _arithmetic(self, work: Work) -> float:
        """Seconds of one machine at its peak."""
        model, machine = self.model, self.machine
        expanded = work.prefill_context - work.prefill_tokens
        attention = (
            work.prefill_pairs * model.flops_per_pair
            + (work.decode_context + work.draft_pairs) * model.flops_per_decode_pair
            + expanded * model.flops_per_expansion
            + work.samples * model.flops_per_sample
        )
        return attention / machine.flops + work.num_tokens * model.flops_per_token / self._peak

    @cached_property
    def _peak(self) -> float:
        """Operations per second in products with weights."""
        return self.machine.peak(self.model.weight_form.products)

    @cached_property
    def _kv_bytes(self) -> int:
        """Bytes of a token, over all machines: machines that share a head keep it each."""
        return self.model.kv_bytes_per_token * self.model.kv_copies(self.tensor_parallel)

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
        """Swaps, and two all-reduces a layer (Megatron-LM)."""
        seconds = self._swapping(work)
        if self.tensor_parallel > 1:
            size = work.num_tokens * self.model.hidden_size * BYTES[self.model.dtype]
            seconds += 2 * self.model.num_layers * self.all_reduce(size)
        return seconds

    def all_reduce(self, size: float) -> float:
        """Seconds to add up this many bytes of each machine: rings, in which every byte goes round
        twice.

        Over several nodes each sums its own first, then every machine a part of it over its own
        share of the network (NCCL's hierarchy).
        """
        machine, parallel = self.machine, self.tensor_parallel
        inside = min(parallel, machine.per_node)
        seconds = 0.0
        if inside > 1:
            seconds += 2 * size * (inside - 1) / inside / machine.link_bandwidth + _LINK_SECONDS
        nodes = parallel // inside
        if nodes > 1:
            part = 2 * size / inside * (nodes - 1) / nodes
            seconds += part / machine.network_bandwidth + _NETWORK_SECONDS
        return seconds
