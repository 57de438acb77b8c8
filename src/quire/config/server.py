"""The settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.config.keys import gather_keys
from quire.config.open_files import most_connections
from quire.config.settings import check_count, check_number, parse_bytes, setting
from quire.errors import ConfigError

_DEFAULT_CONNECTIONS = 4096


@dataclass(frozen=True)
class ServerConfig:
    """Where and how an engine is served. ``help`` in a field's metadata says what it does."""

    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: one that is free")
    served_model_name: Sequence[str] = setting(
        (), "name that requests may use for the model; may be given several times, the first one "
        "labels metrics (default: the model's own)",
    )  # fmt: skip
    api_key: Sequence[str] = setting(
        (), "keys of which clients must send one; several, to exchange them or to tell clients "
        "apart. Other users of this machine see what is typed here: better api_key_file, or the "
        "variable QUIRE_API_KEY (keys separated by commas). They add up (default: none is needed)",
        secret=True,
    )  # fmt: skip
    api_key_file: str | None = setting(
        None, "file with such keys, one a line; lines that begin with # are comments"
    )
    api_key_metrics: bool = setting(False, "/metrics needs a key too")
    cache_salt_by_key: bool | None = setting(
        None,
        "only requests with the same key share a prefix cache (default: on, where there are "
        "several keys)",
    )
    enable_prompt_tokens_details: bool = setting(
        True,
        "tell clients how much of their prompts was found in the prefix cache, and so what others "
        "have sent who share it",
    )
    max_body_bytes: int | None = setting(
        None, "size of the largest request; what is larger is refused before it is read (default: "
        "by max_model_len, from 1MiB to 32MiB)",
    )  # fmt: skip
    max_unread_bytes: int | None = setting(
        None, "size together of all large requests that have begun to come and are not parsed yet; "
        "what is above is refused (default: 8 times max_body_bytes, at least 64MiB)",
    )  # fmt: skip
    request_read_timeout: float = setting(
        30.0, "seconds within which a request must have been received whole"
    )
    max_connections: int | None = setting(
        None, "most connections at once; to make room, those that wait for their client are closed "
        "(default: 4096, or what the limit of open files leaves)",
    )  # fmt: skip
    truncate_max_tokens: bool = setting(
        True, "lower a max_tokens that is above what max_model_len leaves after the prompt, and "
        "tell so in the answer; else such a request is refused",
    )  # fmt: skip
    max_logprobs: int | None = setting(
        None, "most likeliest tokens beside each that a request may ask for; -1: as many as there "
        "may be (default: 100)",
    )  # fmt: skip
    trust_request_chat_template: bool = setting(
        False, "requests may bring a chat template of their own, a program in Jinja"
    )
    shutdown_timeout: float = setting(
        30.0, "seconds that running requests may take to end once the server is to end; 0: none"
    )

    def __post_init__(self) -> None:
        check_count("port", self.port, 0, 65535)
        check_number("request_read_timeout", self.request_read_timeout, 0.1, 3600, "seconds")
        check_number("shutdown_timeout", self.shutdown_timeout, 0, 86400, "seconds")
        check_count("max_logprobs", self.max_logprobs, -1, 100)
        if self.max_logprobs == -1:
            object.__setattr__(self, "max_logprobs", None)
        most = most_connections()
        if most == 0:
            raise ConfigError("max_connections: the limit of open files (ulimit -n) leaves none")
        check_count("max_connections", self.max_connections, 1, most)
        if self.max_connections is None:
            default = _DEFAULT_CONNECTIONS if most is None else min(_DEFAULT_CONNECTIONS, most)
            object.__setattr__(self, "max_connections", default)
        for name in ("max_body_bytes", "max_unread_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name)))
                check_count(name, getattr(self, name))
        keys = gather_keys(self.api_key, self.api_key_file)
        object.__setattr__(self, "api_key", keys)
        for name in ("api_key_metrics", "cache_salt_by_key"):
            if getattr(self, name) and not keys:
                raise ConfigError(f"{name} needs an api_key")

    @property
    def salts_by_key(self) -> bool:
        """``cache_salt_by_key``, or what None means."""
        if self.cache_salt_by_key is None:
            return len(self.api_key) > 1
        return self.cache_salt_by_key
