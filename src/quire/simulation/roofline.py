"""Seconds of a step from a model's shape and a machine's figures.

The roofline model (Williams, Waterman and Patterson, CACM 2009): a step takes as long as its
arithmetic or its memory traffic, whichever is longer, and what cannot hide behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.protocol import RecoveryCosts
from quire.shape import BYTES, ModelShape
from quire.simulation.catalogue.machines import Machine
from quire.simulation.work import Work

_LINK_SECONDS = 1e-5  # before an all-reduce moves its first byte


@dataclass(frozen=True)
class Roofline:
    """A model on a tensor-parallel group of equal machines."""

    model: ModelShape
    machine: Machine
    tensor_parallel: int
    block_size: int

    def seconds(self, work: Work) -> float:
        return self.machine.step_seconds + max(self.parts(work)) + self._exchange(work)

    def parts(self, work: Work) -> tuple[float, float]:
        """Seconds of arithmetic and of memory traffic."""
        model, machine = self.model, self.machine
        pairs = work.prefill_pairs + work.decode_context + work.draft_pairs
        flops = (
            work.num_tokens * model.flops_per_token
            + work.samples * model.flops_per_sample
            + pairs * model.flops_per_pair
        )
        kv = work.prefill_context + work.decode_context + work.num_tokens
        block = self.block_size * model.kv_bytes_per_token
        traffic = (
            model.weight_bytes_read(work.num_tokens)
            + kv * model.kv_bytes_per_token
            + 2 * work.copied_blocks * block
        )
        parallel = self.tensor_parallel
        return (
            flops / (machine.flops * machine.compute_share * parallel),
            traffic / (machine.bandwidth * machine.bandwidth_share * parallel),
        )

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """What a block's way and a token's recomputation cost."""
        compute, _ = self.parts(Work(prefill_tokens=1))
        swap = block_size * self.model.kv_bytes_per_token / self._host_bandwidth
        return RecoveryCosts(swap, compute)

    @property
    def _host_bandwidth(self) -> float:
        return self.machine.host_bandwidth * self.tensor_parallel

    def _exchange(self, work: Work) -> float:
        """Swaps, and two ring all-reduces a layer (Megatron-LM): every byte goes round twice."""
        block = self.block_size * self.model.kv_bytes_per_token
        seconds = work.swapped_blocks * block / self._host_bandwidth
        parallel = self.tensor_parallel
        if parallel > 1:
            size = work.num_tokens * self.model.hidden_size * BYTES[self.model.dtype]
            each = 2 * size * (parallel - 1) / parallel / self.machine.link_bandwidth
            seconds += 2 * self.model.num_layers * (each + _LINK_SECONDS)
        return seconds
