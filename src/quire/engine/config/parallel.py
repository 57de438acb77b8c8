"""Whether ranks can be as the settings want them."""

from __future__ import annotations

from typing import Protocol

from quire.core.errors import ConfigError
from quire.core.settings import check_count, check_number

_MOST_RANKS = 64
NO_RANKS_ON_GPU = "tensor_parallel_size above 1 computes on CPUs only: choose device cpu"


class Parallel(Protocol):
    """What settings say of ranks."""

    @property
    def tensor_parallel_size(self) -> int: ...
    @property
    def distributed_executor_backend(self) -> str | None: ...
    @property
    def nnodes(self) -> int: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def master_addr(self) -> str: ...
    @property
    def master_port(self) -> int: ...
    @property
    def distributed_timeout_seconds(self) -> float: ...
    @property
    def device(self) -> str: ...


def check_parallel(config: Parallel) -> None:
    """ConfigError unless the ranks can be as ``config`` wants them."""
    size, nodes = config.tensor_parallel_size, config.nnodes
    check_count("tensor_parallel_size", size, 1, _MOST_RANKS)
    check_count("nnodes", nodes, 1, size)
    check_count("node_rank", config.node_rank, 0, nodes - 1)
    check_count("master_port", config.master_port, 1, 65535)
    seconds = config.distributed_timeout_seconds
    check_number("distributed_timeout_seconds", seconds, 1, 86400, "seconds")
    if seconds is None:
        raise ConfigError("distributed_timeout_seconds must be a number of seconds")
    if not isinstance(config.master_addr, str) or not config.master_addr:
        raise ConfigError(f"master_addr must be an address, got {config.master_addr!r}")
    if size % nodes:
        raise ConfigError(f"tensor_parallel_size {size} cannot be divided among {nodes} nnodes")
    if config.distributed_executor_backend == "uni" and size > 1:
        raise ConfigError('distributed_executor_backend "uni" is for tensor_parallel_size 1')
    if config.distributed_executor_backend == "ray":
        if size == 1:
            raise ConfigError(
                'distributed_executor_backend "ray" does nothing with tensor_parallel_size 1'
            )
        if nodes > 1:
            raise ConfigError("nnodes does nothing with ray, which finds machines itself")
    if config.device == "cuda" and size > 1:
        raise ConfigError(NO_RANKS_ON_GPU)
