"""The settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.config.settings import check_count, check_number, parse_bytes, setting


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
    max_body_bytes: int | None = setting(
        None, "size of the largest request; what is larger is refused before it is read (default: "
        "by max_model_len, from 1MiB to 32MiB)",
    )  # fmt: skip
    request_read_timeout: float = setting(
        30.0, "seconds in which a request must have come whole, counted from its headers"
    )
    max_unread_bytes: int | None = setting(
        None, "size of all large requests together that have begun to come and are not parsed "
        "yet; what is above is refused (default: 8 of max_body_bytes, at least 64MiB)",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_count("port", self.port, 0, 65535)
        check_number("request_read_timeout", self.request_read_timeout, 0.01, 86400, "seconds")
        for name in ("max_body_bytes", "max_unread_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name)))
                check_count(name, getattr(self, name))
