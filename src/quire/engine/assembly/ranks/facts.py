"""What ranks must agree on before they hold parts of one model."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.core.version import __version__
from quire.engine.assembly.digests import samples
from quire.engine.config import EngineConfig
from quire.models.checkpoint_files import find_files
from quire.models.shape import config_files

_OF_EACH = frozenset({
    "model", "revision", "tokenizer", "download_dir", "chat_template", "generation_config",
    "override_generation_config", "pooler_config", "cpu_isa", "lora_modules", "max_num_waiting",
    "max_queue_time", "scheduling_policy", "session_timeout", "max_num_sessions",
    "max_sessions_per_client", "swap_path", "threads", "record_trace", "record_steps", "seed",
    "experts_path", "node_rank", "master_addr", "warm_up", "kv_events_config", "kv_store",
    "kv_store_size",
})  # fmt: skip
"""Settings that may differ: what only rank 0 needs, and what is each machine's own matter."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHARED_MEMORY = Path("/dev/shm")


def facts_of(config: EngineConfig, directory: Path, instruction_set: str) -> dict[str, Any]:
    """Of this rank: the version, the model's files, the settings, and what computes.

    Of what configs say the content counts, of weights their sizes, and a sample of their bytes.
    """
    facts: dict[str, Any] = {"version": __version__}
    for file in config_files(directory):
        facts[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    files = sorted(find_files(directory).paths)
    for file in files:
        facts[f"bytes of {file.name}"] = file.stat().st_size
    for name, sample in samples(files).items():
        facts[f"what is in {name}"] = sample
    for name, value in asdict(config).items():
        if name not in _OF_EACH:
            facts[name] = dict(value) if isinstance(value, Mapping) else value
    facts["whether there is a kv_store"] = config.kv_store is not None
    facts["instruction set"] = instruction_set
    return facts


def difference(first: Mapping[str, Any], other: Mapping[str, Any], rank: int) -> str | None:
    """What two ranks differ in, for people; None: nothing."""
    for name in [*first, *other]:
        here, there = first.get(name, "missing"), other.get(name, "missing")
        if here != there:
            return f"{name} is {here} on rank 0, and {there} on rank {rank}"
    return None


def place() -> str:
    """Processes with one place can share memory: it names a machine, or a container on one."""
    try:
        memory = _SHARED_MEMORY.stat()
        return f"{_BOOT.read_text().strip()} {memory.st_dev} {memory.st_ino}"
    except OSError:
        return socket.gethostname()
