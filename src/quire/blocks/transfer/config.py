"""Disaggregated prefill: what an engine does of the two, and where blocks are handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.blocks.transfer.key import SharedKey
from quire.core.errors import ConfigError
from quire.settings import check_known, check_settings, setting

ROLES = ("both", "prefill", "decode")
_NAME = "kv_transfer_config"
_SAID_BY_ROLE = ("kv_connector", "kv_role")  # of vLLM's
_ANY_ADDRESS = ("", "0.0.0.0", "::", "*")


@dataclass(frozen=True)
class KVTransferConfig:
    """How blocks are sent and fetched, and how much memory they may take meanwhile."""

    kv_ip: str = setting(
        "127.0.0.1",
        "prefill engine: address to listen on, by which decode engines reach it",
        value="ADDRESS",
    )
    kv_port: int = setting(
        14579,
        "prefill engine: port to listen on; further ranks listen on the ports after it; 0: any "
        "free port, for one rank",
        low=0,
        high=65535,
        value="PORT",
    )
    kv_buffer_size: int | str = setting(
        "1GiB", "most memory for blocks that wait to be fetched, or to be used", unit="bytes"
    )
    key_file: str | None = setting(
        None,
        "holds a key that engines of both roles share: needed where the two are on different "
        "machines and requests say where blocks are",
        value="FILE",
    )
    timeout: float = setting(
        5.0,
        "decode engine: longest wait for blocks; what is still missing then is computed",
        low=0.01,
        high=600,
        unit="seconds",
    )

    def __post_init__(self) -> None:
        check_settings(self, f"{_NAME}: ")
        if self.kv_ip in _ANY_ADDRESS:
            raise ConfigError(
                f"{_NAME}: kv_ip must be an address by which decode engines reach this one; "
                f"got {self.kv_ip!r}"
            )

    def key(self) -> SharedKey:
        """Read from its file. ConfigError: it holds none."""
        return SharedKey.of(self.key_file)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> KVTransferConfig:
        """The config of these options. ConfigError: one is unknown or out of its range."""
        for name in options:
            if name in _SAID_BY_ROLE:
                raise ConfigError(f"{_NAME}: role (prefill or decode) says what {name} would")
        check_known(cls, options, f"{_NAME}: ")
        return cls(**options)


class _TransferSettings(Protocol):
    """The fields of an EngineConfig that matter here."""

    @property
    def role(self) -> str: ...

    @property
    def kv_transfer_config(self) -> Mapping[str, Any] | None: ...

    @property
    def transfer(self) -> KVTransferConfig: ...

    @property
    def enable_prefix_caching(self) -> bool | None: ...

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


def check_transfer(config: _TransferSettings) -> None:
    """ConfigError if the engine cannot have its role."""
    role = config.role
    if role == "both":
        if config.kv_transfer_config is not None:
            _ = config.transfer
            raise ConfigError(f'{_NAME} does nothing with role "both"')
        return
    _ = config.transfer  # checks it
    if config.enable_prefix_caching is False:
        raise ConfigError(f'role "{role}" needs enable_prefix_caching: blocks go by their content')
    _check_ranks(config)
    for name in ("kv_store", "kv_offloading_size"):
        if getattr(config, name) is not None:
            raise ConfigError(f'role "{role}": {name} is for engines of role "both"')


def _check_ranks(config: _TransferSettings) -> None:
    """ConfigError unless each rank can hand over its part, at its own port."""
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
