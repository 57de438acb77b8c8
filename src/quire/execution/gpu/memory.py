"""How much of a device the KV pool may take: what is left beside a measured worst step.

And the main memory that the pool is swapped to.
"""

from __future__ import annotations

import fcntl
import gc
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Opened, Readout, Request, Step
from quire.execution.free_memory import free_memory
from quire.text.params import SamplingParams

_PORTABLE = 1  # cudaHostRegisterPortable
# Nearly all of the vocabulary is kept, so the sampler has to sort it.
_SAMPLING = SamplingParams(temperature=100.0, top_p=0.9999)

_Result = TypeVar("_Result")


class DeviceMemory(Protocol):
    """What a device says of its memory, in bytes."""

    total: int

    def free(self) -> int:
        """Bytes that nobody has taken."""
        ...

    def held(self) -> int:
        """Bytes that PyTorch holds in this process, in use or for later use."""
        ...

    def peak(self) -> int:
        """The most that it has held since the last ``trim``."""
        ...

    def trim(self) -> None:
        """Give back what nobody uses, and let the peak begin anew."""
        ...


class CUDAMemory:
    """``DeviceMemory`` of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.total = torch.cuda.mem_get_info(device)[1]

    def free(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def held(self) -> int:
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    def trim(self) -> None:
        gc.collect()  # an engine that nobody holds any more, for one
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)


class MemoryPlan:
    """Follows an engine's memory from before its weights are there to its pool.

    All figures are this process's own: PyTorch counts what it takes, and what the driver takes
    beside it (compiled kernels, libraries) is how much more became taken than that. So what other
    engines on the device have is not mistaken for this one's, provided that none of them starts in
    between (``one_at_a_time``).
    """

    def __init__(self, memory: DeviceMemory, utilization: float) -> None:
        """ConfigError if the device has not ``utilization`` of its memory free."""
        self._memory = memory
        self._share = int(memory.total * utilization)
        self._utilization = utilization
        memory.trim()
        self._free_at_start, self._held_at_start = memory.free(), memory.held()
        if self._free_at_start < self._share:
            possible = int(self._free_at_start / memory.total * 100) / 100
            raise ConfigError(
                f"gpu_memory_utilization {utilization} is {size(self._share)}, but only "
                f"{size(self._free_at_start)} of the device's {size(memory.total)} are free: lower "
                f"it to {possible}, or end what else runs on the device"
            )

    def check_weights(self, num_bytes: int) -> None:
        """ModelError if weights of that size cannot be loaded."""
        if num_bytes > self._share:
            raise ModelError(
                f"the model's weights are {size(num_bytes)}, and the engine may take "
                f"{size(self._share)} of the device's {size(self._memory.total)} "
                f"(gpu_memory_utilization {self._utilization}): choose a smaller model, --dtype "
                "bfloat16 if it is float32, a larger device, or --device cpu"
            )

    def pool_bytes(self, rehearse: Callable[[], object]) -> int:
        """What the pool may take, once a rehearsal has shown what computing needs.

        ``rehearse`` computes the largest step, and returns what keeps its memory.

        Raises:
            ConfigError: nothing is left, or the step itself does not fit.
        """
        self._memory.trim()
        weights = self._memory.held() - self._held_at_start
        kept = run_or_refuse(rehearse)
        working = self._memory.peak() - self._held_at_start - weights
        self._memory.trim()
        held = self._memory.held() - self._held_at_start
        driver = max(0, self._free_at_start - self._memory.free() - held)
        del kept
        self._memory.trim()
        left = self._share - weights - working - driver
        if left <= 0:
            raise ConfigError(
                f"gpu_memory_utilization {self._utilization} is {size(self._share)}: weights take "
                f"{size(weights)}, the largest step {size(working)} and the driver {size(driver)}, "
                "which leaves nothing for the KV pool. Raise it, or lower max_num_batched_tokens "
                "or max_num_seqs"
            )
        # Another process may have taken what was free at the start.
        return min(left, self._memory.free() - working)


def run_or_refuse(step: Callable[[], _Result]) -> _Result:
    """What ``step`` returns; ConfigError if it runs out of memory."""
    try:
        return step()
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            "the largest step does not fit in the device's memory: lower max_num_batched_tokens or "
            f"max_num_seqs, or give the pool less ({str(error).splitlines()[0]})"
        ) from error


@contextmanager
def one_at_a_time(device_name: str) -> Iterator[None]:
    """Let no other engine of this machine start on the device meanwhile."""
    name = "".join(c if c.isalnum() else "-" for c in device_name)
    path = Path(tempfile.gettempdir()) / f"quire-{name}.lock"
    if not path.exists():
        path.touch()
    with path.open() as file:  # another user's, perhaps: a lock asks for no more
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def size(num_bytes: float) -> str:
    """A size in GiB, or in MiB if it is less than one."""
    if abs(num_bytes) < 2**30:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**30:.2f} GiB"


def worst_step(
    max_tokens: int,
    max_seqs: int,
    max_positions: int,
    block_size: int,
    sink_blocks: Sequence[int],
    states: bool = False,
) -> Step:
    """The largest step: of as many tokens and sequences as may be, each of them sampled.

    All of them are in block 0 of every KV group, so a pool of one block will do: what is computed
    means nothing. ``sink_blocks``: ``BlockTable.num_sink_blocks`` of each KV group that keeps
    tokens. states: whether there is another, that keeps states.
    """
    num_seqs = min(max_tokens, max_seqs)
    spare = max_tokens - num_seqs
    chunks, opened = [], []
    for seq_id in range(num_seqs):
        more = min(spare, max_positions - 1)
        spare -= more
        tokens = [0] * (1 + more)
        blocks = (0,) * -(-len(tokens) // block_size)
        first, *further = [
            *(BlockTable(blocks, block_size, num_sink_blocks=sinks) for sinks in sink_blocks),
            *[BlockTable((0,), block_size, keeps_state=True)] * states,
        ]
        table = first._replace(further=tuple(further))
        request = Request(f"worst-{seq_id}", tuple(tokens), _SAMPLING, 1, seed=seq_id)
        opened.append(Opened(seq_id, request, 0, len(tokens)))
        chunks.append(Chunk(seq_id, tokens, 0, table, len(tokens), Readout()))
    return Step(chunks=chunks, opened=opened)


def swap_memory(size: int, device: torch.device) -> Tensor:
    """``size`` bytes, uint8, that stay where they are for as long as this very tensor lives.

    PyTorch's own pinned tensors take the next power of two, and keep it when they are gone.

    Raises:
        ConfigError: there is not so much, or it cannot be pinned.
    """
    free = free_memory()
    if size > free:
        raise ConfigError(
            f"swap_space: {size:,} bytes of main memory are to be taken for good, and only "
            f"{free:,} are free"
        )
    memory = torch.empty(size, dtype=torch.uint8)
    if device.type == "cuda":
        driver, address = torch.cuda.cudart(), memory.data_ptr()  # type: ignore[no-untyped-call]
        error = int(driver.cudaHostRegister(address, size, _PORTABLE))
        if error:
            raise ConfigError(
                f"swap_space: {size:,} bytes of main memory cannot be pinned (CUDA error {error}): "
                "lower it, or raise the limit of locked memory (ulimit -l)"
            )
        weakref.finalize(memory, driver.cudaHostUnregister, address)
    return memory
