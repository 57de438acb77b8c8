"""Prefill and decode apart: what an engine does of both, and where blocks are handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.core.errors import ConfigError
from quire.core.settings import check_count, check_known, check_number, parse_bytes, setting

ROLES = ("both", "prefill", "decode")
_NAME = "kv_transfer_config"
_TOLD_BY_ROLE = ("kv_connector", "kv_role")  # of vLLM's
_ANY_ADDRESS = ("", "0.0.0.0", "::", "*")
NO_ROLE_ON_GPU = "role: blocks are handed over on CPUs only: choose device cpu"


@dataclass(frozen=True)
class KVTransferConfig:
    """How blocks are handed over, and how much of them is kept for that."""

    kv_ip: str = setting(
        "127.0.0.1", "of a prefill engine: address to listen on, by which decode engines find it"
    )
    kv_port: int = setting(
        14579,
        "of a prefill engine: port to listen on, and of further ranks those after "
        "it; 0: one that is free, for one rank",
    )
    kv_buffer_size: int | str = setting(
        "1GiB", "most memory for blocks that wait to be fetched, or to be used"
    )
    timeout: float = setting(
        5.0, "of a decode engine: seconds to wait for blocks; what is missing then is computed"
    )

    def __post_init__(self) -> None:
        if not isinstance(self.kv_ip, str) or self.kv_ip in _ANY_ADDRESS:
            raise ConfigError(
                f"{_NAME}: kv_ip must be an address by which decode engines find this one; "
                f"got {self.kv_ip!r}"
            )
        check_count(f"{_NAME}: kv_port", self.kv_port, 0, 65535)
        check_number(f"{_NAME}: timeout", self.timeout, 0.01, 600, "seconds")
        try:
            object.__setattr__(self, "kv_buffer_size", parse_bytes(self.kv_buffer_size))
        except ConfigError as error:
            raise ConfigError(f"{_NAME}: kv_buffer_size: {error}") from None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> KVTransferConfig:
        """ConfigError where an option is unknown or out of its range."""
        for name in options:
            if name in _TOLD_BY_ROLE:
                raise ConfigError(f"{_NAME}: role (prefill or decode) says what {name} would")
        check_known(cls, options, f"{_NAME}: ")
        return cls(**options)


class _Roled(Protocol):
    """The fields of an EngineConfig that it depends on."""

    @property
    def role(self) -> str: ...

    @property
    def kv_transfer_config(self) -> Mapping[str, Any] | None: ...

    @property
    def transfer(self) -> KVTransferConfig: ...

    @property
    def enable_prefix_caching(self) -> bool | None: ...

    @property
    def device(self) -> str: ...

    @property
    def tensor_parallel_size(self) -> int: ...

    @property
    def distributed_executor_backend(self) -> str | None: ...

    @property
    def nnodes(self) -> int: ...

    @property
    def kv_store(self) -> str | None: ...

    @property
    def kv_offloading_size(self) -> float | None: ...


def check_transfer(config: _Roled) -> None:
    """ConfigError where a role cannot be played."""
    role = config.role
    if role not in ROLES:
        raise ConfigError(f"role must be one of {', '.join(ROLES)}; got {role!r}")
    if role == "both":
        if config.kv_transfer_config is not None:
            _ = config.transfer
            raise ConfigError(f'{_NAME} does nothing with role "both"')
        return
    _ = config.transfer  # is checked
    if config.enable_prefix_caching is False:
        raise ConfigError(f'role "{role}" needs enable_prefix_caching: blocks go by their content')
    if config.device == "cuda":
        raise ConfigError(NO_ROLE_ON_GPU)
    _check_ranks(config)
    for name in ("kv_store", "kv_offloading_size"):
        if getattr(config, name) is not None:
            raise ConfigError(f'role "{role}": {name} is for engines of role "both"')


def _check_ranks(config: _Roled) -> None:
    """ConfigError unless each rank can hand its part over, at the port of its rank."""
    role, size, port = config.role, config.tensor_parallel_size, config.transfer.kv_port
    if size == 1:
        return
    if config.nnodes > 1 or config.distributed_executor_backend == "ray":
        raise ConfigError(f'role "{role}": blocks are handed over by ranks of one machine only')
    if role == "prefill" and not 1 <= port <= 65536 - size:
        raise ConfigError(
            f"{_NAME}: kv_port must be from 1 to {65536 - size}, got {port}: each of {size} ranks "
            "listens at a port, one after the other"
        )
