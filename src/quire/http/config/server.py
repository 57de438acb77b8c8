"""The settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import os
import resource
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.http.config.keys import check_guards, gather_keys
from quire.http.config.otlp import checked_endpoint, protocol_of, wants_metrics
from quire.http.config.volatile import rules_of
from quire.settings import check_count, check_settings, parse_texts, setting
from quire.text.dialect import DIALECTS, REASONING

_OTHERS = 128  # files that are not connections: weights, logs, devices


def most_connections() -> int | None:
    """Connections that the limit of open files allows; None: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else max(0, hard - _OTHERS)


def make_room(connections: int, backlog: int) -> None:
    """Raise the limit of open files for these connections, and some that will be refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + backlog + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


HERE = "localhost"
"""Among allowed origins: every page of this machine, whatever its port."""
_DEFAULT_CONNECTIONS = 4096
_MOST_SECONDS = 86400

_server = partial(setting, section="server")
_api = partial(setting, section="API")
_security = partial(setting, section="security")
_adapters = partial(setting, section="adapters")
_observing = partial(setting, section="observing")


@dataclass(frozen=True)
class ServerConfig:
    """Where and how an engine is served. A field's metadata says what it does."""

    # -- server ----------------------------------------------------------------------------

    host: str = _server(
        "127.0.0.1",
        "address to listen on; 0.0.0.0: every address of this machine, for other machines to reach",
        value="ADDRESS",
        common=True,
    )
    port: int = _server(
        8000, "port to listen on; 0: any free port", low=0, high=65535, value="PORT", common=True
    )
    root_path: str = _server(
        "", "path under which a proxy publishes the server, such as /llm", value="PATH"
    )
    served_model_name: Sequence[str] = _server(
        (),
        "name of the model in requests; may be repeated, the first one labels metrics (default: "
        "the model's own)",
        value="NAME",
    )
    max_connections: int | None = _server(
        None,
        "most open connections; idle ones are closed to make room (default: 4096, or what the "
        "limit of open files allows)",
        value="N",
    )
    max_body_bytes: int | None = _server(
        None,
        "largest request body; a larger one is refused before it is read (default: from 1MiB to "
        "32MiB, by max_model_len; 32MiB with enable_prompt_embeds)",
        low=1,
        unit="bytes",
    )
    max_unread_bytes: int | None = _server(
        None,
        "most memory for large request bodies that are being received; a further one is refused "
        "(default: 8 times max_body_bytes, at least 64MiB)",
        low=1,
        unit="bytes",
    )
    request_read_timeout: float = _server(
        30.0,
        "longest time in which a request must have been received",
        low=0.1,
        high=3600,
        unit="seconds",
    )
    shutdown_timeout: float = _server(
        30.0,
        "longest time that running requests may take to finish at shutdown; 0: none",
        low=0,
        high=_MOST_SECONDS,
        unit="seconds",
    )

    # -- API -------------------------------------------------------------------------------

    tool_call_parser: str | None = _api(
        None,
        "how the model writes tool calls (default: as its chat template shows)",
        choices=tuple(DIALECTS),
        value="NAME",
    )
    reasoning_parser: str | None = _api(
        None,
        "how the model marks its reasoning (default: as its chat template shows)",
        choices=tuple(REASONING),
        value="NAME",
    )
    enable_auto_tool_choice: bool = _api(
        True, "let the model decide to call tools, if it is known how it writes calls"
    )
    exclude_tools_when_tool_choice_none: bool = _api(
        False, "leave tools out of the prompt when tool_choice forbids calls"
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = _api(
        None,
        'variables for chat templates, which those of a request replace: '
        '{"enable_thinking": false}',
    )  # fmt: skip
    strict_fields: bool = _api(
        False,
        "refuse fields that say nothing about the text and that Quire does not have; otherwise "
        "they are left out, with a warning in the answer",
    )
    strict_model_name: bool = _api(
        False,
        "refuse names of models that are not served; otherwise the one model answers to any, with "
        "a warning in the answer, unless served_model_name names it or it has adapters",
    )
    truncate_max_tokens: bool = _api(
        True,
        "lower a max_tokens that exceeds what max_model_len leaves after the prompt, with a "
        "warning in the answer; otherwise such a request is refused",
    )
    volatile_prompt_lines: Sequence[str] = _api(
        (),
        "lines of system prompts that change with every request, as PATTERN:move (to the end of "
        "the prompt, so that the prefix cache finds what stands before) or PATTERN:cut, with a "
        "warning in the answer; * in a pattern is any text; may be repeated",
        value="RULE",
    )
    enable_prompt_embeds: bool = _api(
        False, "take prompts of vectors, in prompt_embeds of /v1/completions"
    )
    max_prompt_embeds_bytes: int = _api(
        2**29,
        "most memory for the prompt_embeds of all requests together, of those that run too; a "
        "further one is told to come again",
        low=1,
        unit="bytes",
    )
    max_logprobs: int | None = _api(
        None,
        "most top log-probabilities that a request may ask for per token; -1: the most there are "
        "(default: 100)",
        low=-1,
        high=100,
        value="N",
    )
    enable_prompt_tokens_details: bool = _api(
        True,
        "report cached prompt tokens in usage, which reveals what other clients have sent who "
        "share the prefix cache",
    )
    stream_interval: int = _api(
        1,
        "tokens per streamed event; the first and the last one are sent at once. More of them cost "
        "clients and server less",
        low=1,
        unit="tokens",
    )
    sse_keep_alive_interval: float = _api(
        15.0,
        "send a comment, which clients ignore, on a stream that had no token for this long, so "
        "that no proxy cuts it; 0: never",
        low=0,
        high=_MOST_SECONDS,
        unit="seconds",
    )
    max_stored_responses: int = _api(
        4096, "most responses (/v1/responses) that are kept for later requests; 0: none", low=0,
        value="N",
    )  # fmt: skip
    max_stored_response_bytes: int = _api(
        2**26,
        "most memory for kept responses; the least recently used are dropped",
        low=1,
        unit="bytes",
    )

    # -- security --------------------------------------------------------------------------

    api_key_file: str | None = _security(
        None,
        "file with API keys, one per line; lines that begin with # are comments",
        value="FILE",
        common=True,
    )
    api_key: Sequence[str] = _security(
        (),
        "API keys, one of which clients must send. Other users of this machine can see the command "
        "line: better use api_key_file, or the variable QUIRE_API_KEY (keys separated by commas). "
        "Keys of all three count (default: no key is needed)",
        value="KEY",
        secret=True,
    )
    api_key_metrics: bool = _security(False, "require a key for /metrics too")
    cache_salt_by_key: bool | None = _security(
        None,
        "share the prefix cache only among requests with the same key (default: on, if there are "
        "several keys)",
    )
    ssl_certfile: str | None = _security(None, "certificate, to serve HTTPS", value="FILE")
    ssl_keyfile: str | None = _security(None, "private key of the certificate", value="FILE")
    ssl_ca_certs: str | None = _security(
        None, "certificates of the authorities that sign clients' certificates", value="FILE"
    )
    ssl_cert_reqs: int = _security(
        0,
        "client certificates: 0, not needed; 1, checked if there is one; 2, required",
        choices=(0, 1, 2),
    )
    allowed_origins: Sequence[str] = _security(
        (),
        "origins of web pages that may use the server (CORS), as https://HOST:PORT; several, or a "
        "JSON list, [] for none; localhost: pages of this machine; *: all (default: all, or "
        "localhost for a server without a key that listens on this machine alone)",
        value="ORIGIN",
    )
    allowed_hosts: Sequence[str] = _security(
        (),
        "names beside localhost by which a server without a key that listens on this machine alone "
        "may be called, as behind a proxy; several, or a JSON list; *: any (default: none)",
        value="NAME",
    )
    allowed_methods: Sequence[str] = _security(
        (), "HTTP methods that those pages may use (default: all)", value="METHOD"
    )
    allowed_headers: Sequence[str] = _security(
        (), "headers that those pages may send (default: all)", value="HEADER"
    )
    allow_credentials: bool = _security(
        False, "let those pages send cookies; needs allowed_origins"
    )
    trust_request_chat_template: bool = _security(
        False, "let requests bring a chat template, which is a program in Jinja"
    )
    disable_fastapi_docs: bool = _security(False, "serve neither /docs nor /openapi.json")

    # -- adapters --------------------------------------------------------------------------

    allow_runtime_lora_updating: bool = _adapters(
        False,
        "load and unload adapters while the server runs, by /v1/load_lora_adapter and "
        "/v1/unload_lora_adapter; needs enable_lora and lora_directory",
    )
    lora_directory: str | None = _adapters(
        None, "directory that adapters loaded while the server runs must be in", value="DIRECTORY"
    )

    # -- observing -------------------------------------------------------------------------

    dashboard: bool = _observing(
        True,
        "serve a page at / that shows memory and requests live, with a chat; not with replicas",
    )
    dashboard_show_text: bool = _observing(
        False,
        "show prompts and outputs at /v1/quire/requests/{id}, to everyone with an API key",
    )
    metrics_names: str = _observing(
        "quire",
        "prefix of the names in /metrics; vllm: vLLM's names where it has the metric, for routers "
        "that read those",
        choices=("quire", "vllm", "both"),
    )
    otlp_traces_endpoint: str | None = _observing(
        None,
        "OpenTelemetry collector (OTLP over HTTP, such as http://localhost:4318, or gRPC) to send "
        "a span per request to, without its text; needs quire-llm[otel]",
        value="URL",
    )
    uvicorn_log_level: str = _observing(
        "info",
        "least severe messages to log",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )
    log_format: str = _observing(
        "text", "text, lines for people; json, one object per line", choices=("text", "json")
    )
    disable_uvicorn_access_log: bool = _observing(False, "do not log a line per request")
    disable_access_log_for_endpoints: str = _observing(
        "/health,/metrics,/ping",
        "paths whose requests are not logged, separated by commas",
        value="PATHS",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        names = parse_texts("served_model_name", self.served_model_name)
        object.__setattr__(self, "served_model_name", names)
        if self.root_path and (not self.root_path.startswith("/") or self.root_path[-1] == "/"):
            raise ConfigError(f"root_path must be a path such as /llm, got {self.root_path!r}")
        if self.otlp_traces_endpoint is not None:
            endpoint = checked_endpoint(self.otlp_traces_endpoint)
            object.__setattr__(self, "otlp_traces_endpoint", endpoint)
        rules = parse_texts("volatile_prompt_lines", self.volatile_prompt_lines)
        object.__setattr__(self, "volatile_prompt_lines", rules)
        rules_of(rules)
        if wants_metrics():
            protocol_of("metrics")
        check_guards(vars(self))
        self._check_ssl()
        self._check_origins()
        if self.max_logprobs == -1:
            object.__setattr__(self, "max_logprobs", None)
        self._check_connections()
        if self.allow_runtime_lora_updating != (self.lora_directory is not None):
            raise ConfigError("allow_runtime_lora_updating and lora_directory need each other")
        if self.lora_directory is not None and not Path(self.lora_directory).is_dir():
            raise ConfigError(f"lora_directory {self.lora_directory} is not a directory")
        keys = gather_keys(self.api_key, self.api_key_file)
        object.__setattr__(self, "api_key", keys)
        for name in ("api_key_metrics", "cache_salt_by_key"):
            if getattr(self, name) and not keys:
                raise ConfigError(f"{name} needs an api_key")
        if self.cache_salt_by_key is None:
            object.__setattr__(self, "cache_salt_by_key", len(keys) > 1)

    def _check_connections(self) -> None:
        most = most_connections()
        if most == 0:
            raise ConfigError("max_connections: the limit of open files (ulimit -n) leaves none")
        check_count("max_connections", self.max_connections, 1, most)
        if self.max_connections is None:
            default = _DEFAULT_CONNECTIONS if most is None else min(_DEFAULT_CONNECTIONS, most)
            object.__setattr__(self, "max_connections", default)

    def _check_ssl(self) -> None:
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
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs, to check clients' certificates")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password="")
        except OSError as error:
            raise ConfigError(f"ssl_certfile and ssl_keyfile cannot be used: {error}") from error

    def _check_origins(self) -> None:
        if self.allow_credentials and (not self.allowed_origins or "*" in self.allowed_origins):
            raise ConfigError(
                "allow_credentials needs allowed_origins: it must not be given to every web page"
            )
        for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
            given = getattr(self, name)
            default = HERE if name == "allowed_origins" and self.is_for_this_machine else "*"
            object.__setattr__(self, name, parse_texts(name, given) if given else (default,))
        if self.allowed_hosts:
            given = parse_texts("allowed_hosts", self.allowed_hosts)
            object.__setattr__(self, "allowed_hosts", given)
            if not self.is_for_this_machine:
                raise ConfigError(
                    "allowed_hosts does nothing with an api_key, or with a host that others reach"
                )

    @property
    def is_for_this_machine(self) -> bool:
        """Whether it needs no key, and listens where only this machine reaches it."""
        return not self.api_key and is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine is meant by that name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_together(config: ServerConfig, engine: EngineConfig) -> None:
    """ConfigError if the settings of a server and of its engine contradict each other."""
    if config.allow_runtime_lora_updating and not engine.enable_lora:
        raise ConfigError("allow_runtime_lora_updating needs enable_lora")
    names: Sequence[str | None] = config.served_model_name or [engine.model]
    for module in engine.adapters:
        if module.name in names:
            raise ConfigError(f"lora_modules: {module.name} is the name of the model itself")
