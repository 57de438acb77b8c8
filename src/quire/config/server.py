"""The settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.config.settings import check_count, parse_bytes, setting


@dataclass(frozen=True)
class ServerConfig:
    """Where and how an engine is served. ``help`` in a field's metadata says what it does."""

    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: one that is free")
    served_model_name: Sequence[str] = setting(
        (), "name that requests may use for the model; may be given several times, the first one "
        "labels metrics (default: the model's own)",
    )  # fmt: skip
    api_key: str | None = setting(None, "key that clients must send (default: none is needed)")
    max_body_bytes: int = setting(
        32 * 2**20, "size of the largest request; it is refused while it is being read"
    )

    def __post_init__(self) -> None:
        check_count("port", self.port, 0, 65535)
        object.__setattr__(self, "max_body_bytes", parse_bytes(self.max_body_bytes))
