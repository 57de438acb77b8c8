"""Whether a device can do what the settings want of it."""

from __future__ import annotations

from typing import Protocol

from quire.core.errors import ConfigError

NO_EXPERTS_FILE_ON_GPU = "experts_path: on a GPU, experts are in its memory; leave it out"


class DeviceSettings(Protocol):
    """What settings say of devices; the defaults are the class's."""

    @property
    def device(self) -> str: ...
    @property
    def cpu_isa(self) -> str: ...
    @property
    def gpu_memory_utilization(self) -> float: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def swap_path(self) -> str | None: ...
    @property
    def experts_path(self) -> str | None: ...


def check_device(config: DeviceSettings) -> None:
    """ConfigError where a setting does nothing on its device, or is none."""
    if not isinstance(config.cpu_isa, str):  # which there are, the kernels know
        raise ConfigError(f"cpu_isa must be a name, got {config.cpu_isa!r}")
    share = config.gpu_memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}")
    if config.device == "cpu":
        if config.kv_cache_dtype == "fp8":
            raise ConfigError('kv_cache_dtype "fp8" needs a GPU; "int8" takes as little memory')
        for name in ("gpu_memory_utilization", "enforce_eager", "async_scheduling"):
            value = getattr(config, name)
            if value and value != getattr(type(config), name):
                raise ConfigError(f'{name} does nothing with device "cpu"')
    if config.device == "cuda" and config.cpu_isa != "auto":
        raise ConfigError('cpu_isa does nothing with device "cuda"')
    if config.device == "cuda" and config.swap_path is not None:
        raise ConfigError('swap_path does nothing with device "cuda", which swaps to main memory')
    if config.device == "cuda" and config.experts_path is not None:
        raise ConfigError(NO_EXPERTS_FILE_ON_GPU)
