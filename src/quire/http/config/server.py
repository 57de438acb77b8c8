"""The settings of the HTTP server."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.settings import (
    check_count,
    check_number,
    check_one_of,
    parse_bytes,
    parse_object,
    parse_texts,
    setting,
)
from quire.http.config.keys import check_guards, gather_keys
from quire.http.config.open_files import most_connections
from quire.http.config.traces import checked_traces_endpoint
from quire.text.dialect import DIALECTS, REASONING

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")

_DEFAULT_CONNECTIONS = 4096


@dataclass(frozen=True)
class ServerConfig:
    """Where and how an engine is served. ``help`` in a field's metadata says what it does."""

    host: str = setting(
        "127.0.0.1", "address to listen on; 0.0.0.0: all of this machine's, for others to reach"
    )
    port: int = setting(8000, "port to listen on; 0: one that is free")
    root_path: str = setting(
        "", "path below which a proxy shows the server to its clients, for the API's description"
    )
    ssl_keyfile: str | None = setting(None, "file with the key of a certificate, to speak HTTPS")
    ssl_certfile: str | None = setting(None, "file with the certificate")
    ssl_ca_certs: str | None = setting(None, "file with those who may have signed a client's")
    ssl_cert_reqs: int = setting(
        0, "whether clients need a certificate: 0, no; 1, if they have one it must be good; 2, yes"
    )
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
    allowed_origins: Sequence[str] = setting(
        (), "web pages whose scripts may use the server, by scheme, host and port; one or several, "
        "or a JSON list, [] for none (default: all)",
    )  # fmt: skip
    allowed_methods: Sequence[str] = setting((), "what they may do (default: everything)")
    allowed_headers: Sequence[str] = setting((), "headers that they may send (default: all)")
    allow_credentials: bool = setting(False, "they may send cookies; needs allowed_origins")
    uvicorn_log_level: str = setting(
        "info", "what the server logs at least: critical, error, warning, info, debug or trace"
    )
    disable_uvicorn_access_log: bool = setting(False, "log no line for each request")
    disable_access_log_for_endpoints: str = setting(
        "/health,/metrics,/ping", "paths whose requests are not logged, separated by commas"
    )
    disable_fastapi_docs: bool = setting(False, "serve neither /docs nor /openapi.json")
    default_chat_template_kwargs: Mapping[str, Any] | None = setting(
        None, 'JSON object of variables for chat templates, under the requests\' own: '
        '{"enable_thinking": false}',
    )  # fmt: skip
    log_format: str = setting("text", "lines for people, or json: an object a line")
    otlp_traces_endpoint: str | None = setting(
        None, "URL of an OpenTelemetry collector (OTLP over HTTP, as http://localhost:4318): it is "
        "sent a span for each request, without its text; needs quire[otel]",
    )  # fmt: skip
    api_key_metrics: bool = setting(False, "/metrics needs a key too")
    metrics_names: str = setting(
        "quire", "how names in /metrics begin: quire; vllm, where vLLM has the same, for routers "
        "that read those; or both",
    )  # fmt: skip
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
    tool_call_parser: str | None = setting(
        None, f"how the model writes calls of tools: {', '.join(DIALECTS)} (default: found in its "
        "chat template)",
    )  # fmt: skip
    reasoning_parser: str | None = setting(
        None, f"the marks of the model's reasoning: {', '.join(REASONING)} (default: found in its "
        "chat template)",
    )  # fmt: skip
    enable_auto_tool_choice: bool = setting(
        True, "the model may call tools without being told to, where it is known how"
    )
    exclude_tools_when_tool_choice_none: bool = setting(
        False, "do not tell the model of tools that it may not call"
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
    allow_runtime_lora_updating: bool = setting(
        False, "adapters may be loaded and let go while the server runs: "
        "/v1/load_lora_adapter, /v1/unload_lora_adapter; needs enable_lora and lora_directory",
    )  # fmt: skip
    lora_directory: str | None = setting(
        None, "directory below which adapters must lie to be loaded while the server runs"
    )
    stream_interval: int = setting(
        1, "tokens of an output that are gathered to one event of its stream; the first one and "
        "the end are sent at once. More of them cost clients and server less",
    )  # fmt: skip
    sse_keep_alive_interval: float = setting(
        15.0, "seconds without a token after which a stream tells that it is alive, which its "
        "client reads over, so that no proxy cuts it while a prompt waits or is read; 0: never",
    )  # fmt: skip
    dashboard: bool = setting(
        True,
        "a page at / that shows the engine live: memory, requests, and a chat; of replicas, none",
    )
    dashboard_show_text: bool = setting(
        False, "tell operators, who bear the same keys as clients, what requests say and are "
        "answered: /v1/quire/requests/{id}",
    )  # fmt: skip
    max_stored_responses: int = setting(
        4096, "responses (/v1/responses) that are kept, for conversations to go on from and to be "
        "asked for again; 0: none",
    )  # fmt: skip
    max_stored_response_bytes: int = setting(
        2**26, "size of all of them together; those that were not used for longest go first"
    )
    shutdown_timeout: float = setting(
        30.0, "seconds that running requests may take to end once the server is to end; 0: none"
    )

    def __post_init__(self) -> None:
        check_count("port", self.port, 0, 65535)
        check_number("request_read_timeout", self.request_read_timeout, 0.1, 3600, "seconds")
        check_number("sse_keep_alive_interval", self.sse_keep_alive_interval, 0, 86400, "seconds")
        check_number("shutdown_timeout", self.shutdown_timeout, 0, 86400, "seconds")
        self._check_names()
        check_one_of("log_format", self.log_format, ("text", "json"))
        if self.otlp_traces_endpoint is not None:
            endpoint = checked_traces_endpoint(self.otlp_traces_endpoint)
            object.__setattr__(self, "otlp_traces_endpoint", endpoint)
        check_guards(vars(self))
        self._check_ssl()
        self._check_origins()
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
        if self.allow_runtime_lora_updating != (self.lora_directory is not None):
            raise ConfigError("allow_runtime_lora_updating and lora_directory need each other")
        if self.lora_directory is not None and not Path(self.lora_directory).is_dir():
            raise ConfigError(f"lora_directory {self.lora_directory} is not a directory")
        check_count("max_stored_responses", self.max_stored_responses, 0)
        check_count("stream_interval", self.stream_interval)
        for name in ("max_body_bytes", "max_unread_bytes", "max_stored_response_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name)))
                check_count(name, getattr(self, name))
        keys = gather_keys(self.api_key, self.api_key_file)
        object.__setattr__(self, "api_key", keys)
        for name in ("api_key_metrics", "cache_salt_by_key"):
            if getattr(self, name) and not keys:
                raise ConfigError(f"{name} needs an api_key")

    def _check_names(self) -> None:
        names = parse_texts("served_model_name", self.served_model_name)
        object.__setattr__(self, "served_model_name", names)
        check_one_of("uvicorn_log_level", self.uvicorn_log_level, LOG_LEVELS)
        if self.root_path and (not self.root_path.startswith("/") or self.root_path[-1] == "/"):
            raise ConfigError(f"root_path must be a path such as /llm, got {self.root_path!r}")
        variables = parse_object("default_chat_template_kwargs", self.default_chat_template_kwargs)
        object.__setattr__(self, "default_chat_template_kwargs", variables or None)
        check_one_of("metrics_names", self.metrics_names, ("quire", "vllm", "both"))
        for name, known in (("tool_call_parser", DIALECTS), ("reasoning_parser", REASONING)):
            if getattr(self, name) not in (None, *known):
                given, names_known = getattr(self, name), ", ".join(known)
                raise ConfigError(f"{name} must be one of {names_known}; got {given!r}")

    def _check_ssl(self) -> None:
        check_count("ssl_cert_reqs", self.ssl_cert_reqs, 0, 2)
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not os.access(path, os.R_OK):
                raise ConfigError(f"{name} {path} cannot be read")
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
                if getattr(self, name):
                    raise ConfigError(f"{name} does nothing without ssl_certfile")
            return
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs, to tell which clients are good")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password="")
        except OSError as error:
            raise ConfigError(f"ssl_certfile and ssl_keyfile cannot be used: {error}") from error

    def _check_origins(self) -> None:
        for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
            given = getattr(self, name)
            object.__setattr__(self, name, parse_texts(name, given) if given else ("*",))
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("allow_credentials needs allowed_origins: with all of them, any page")

    @property
    def salts_by_key(self) -> bool:
        """``cache_salt_by_key``, or what None means."""
        if self.cache_salt_by_key is None:
            return len(self.api_key) > 1
        return self.cache_salt_by_key
