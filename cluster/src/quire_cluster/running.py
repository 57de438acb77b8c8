"""Runs replicas from deployment to shutdown, on a Ray of their own or on an existing cluster."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from threading import Event

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from quire.core.errors import ConfigError, EngineError
from quire.http.config.server import ServerConfig
from quire.kernels.threads import usable_cpus
from quire_cluster.config import DeploySettings, Span
from quire_cluster.ending import TimedEnding
from quire_cluster.keeper import SLOWEST, Keeper
from quire_cluster.serve import application, shared_out

_LEAVING = 30.0  # seconds that shutdown may take, on top of the requests'
_TELLING = 2.0  # seconds to say what is left, and to be gone
_OBJECT_STORE = 2**28  # bytes: only large requests are kept there
_OWN = re.compile(rf"^{re.escape(EngineError.__module__)}\.\w+: (.+)$", re.MULTILINE)


def longest_end(server: ServerConfig, haste: bool = False) -> float:
    """Seconds from a signal to the end of the process; haste: from a second one."""
    return (0.0 if haste else server.shutdown_timeout) + _LEAVING + SLOWEST + _TELLING


def run(settings: DeploySettings, tell: Callable[[str], None]) -> str | None:
    """Serve until a signal asks for the end, then let running requests finish.

    Returns what has not ended, in words: Ray would wait for that, too, at this process's exit.
    """
    settings = shared_out(settings)
    if settings.deploy.address is None:
        settings = _on_this_machine(settings)
    ending, place = TimedEnding(), settings.deploy.address
    with (
        contextlib.ExitStack() as last,
        joined(place, ending),
        deployed(settings, ending),
    ):
        asked = last.enter_context(_signals())  # until all has ended
        tell(describe(settings))
        asked.wait()
        asked.clear()
        ending.within(settings.server.shutdown_timeout + _LEAVING)
        drain(settings, ending, asked)
    if ending.left is None or place is None:  # a Ray of our own leaves nothing
        return ending.left
    name = settings.deploy.app_name
    return f"{ending.left}: the application {name!r} may be left in the Ray at {place}"


def _on_this_machine(settings: DeploySettings) -> DeploySettings:
    """Settings with which blocks are handed over on an address of this machine only."""
    engine = settings.engine
    if engine.role == "both":
        return settings
    transfer = {**(engine.kv_transfer_config or {}), "kv_ip": "127.0.0.1"}
    return settings._replace(engine=replace(engine, kv_transfer_config=transfer))


@contextlib.contextmanager
def joined(address: str | None, ending: TimedEnding) -> Iterator[None]:
    """A Ray: the cluster at ``address``, or one of our own that ends with us."""
    if address is None:
        with _own_ray(ending):
            yield
        return
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"address: no Ray can be joined at {address}: {error}") from error
    try:
        yield
    finally:
        ending.within(_LEAVING)
        ending.do("leaving Ray", ray.shutdown)


@contextlib.contextmanager
def _own_ray(ending: TimedEnding) -> Iterator[None]:
    with contextlib.closing(Keeper()) as keeper:
        ray.init(
            num_cpus=usable_cpus(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE,
            log_to_driver=False,
        )
        keeper.watch()
        try:
            yield
        finally:
            ending.within(_LEAVING)
            ending.do("Ray Serve", serve.shutdown)
            ending.do("Ray", ray.shutdown)


@contextlib.contextmanager
def deployed(settings: DeploySettings, ending: TimedEnding) -> Iterator[None]:
    """The application, once all its replicas run."""
    server, name = settings.server, settings.deploy.app_name
    options = HTTPOptions(
        host=server.host,
        port=server.port,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
    )
    quiet = LoggingConfig(enable_access_log=False)  # Quire has its own
    serve.start(http_options=options, logging_config=quiet)
    try:
        serve.run(application(settings), name=name, logging_config=quiet)
        yield
    except RuntimeError as error:
        raise EngineError(_why(name) or str(error)) from None
    finally:
        ending.within(_LEAVING)
        ending.do(f"the application {name!r}", partial(serve.delete, name))


def drain(settings: DeploySettings, ending: TimedEnding, asked: Event) -> None:
    """Refuse new requests and wait for running ones; a second signal ends the wait."""

    def end(seconds: float) -> None:
        serve.get_app_handle(settings.deploy.app_name).end.remote(seconds).result()

    ending.do("the gateway", partial(end, settings.server.shutdown_timeout), enough=asked)
    if asked.is_set():
        ending.within(_LEAVING)
        ending.do("the gateway", partial(end, 0.0))


def describe(settings: DeploySettings) -> str:
    """The address and the replicas, in words."""
    engine, server, deploy = settings
    scheme = "http" if server.ssl_certfile is None else "https"
    host = f"[{server.host}]" if ":" in server.host else server.host
    number = _number(deploy.answering)
    if deploy.prefilling is not None:
        number += f", and {_number(deploy.prefilling)} to compute prompts"
    place = ray.get_runtime_context().gcs_address
    return (
        f"Replicas of {engine.model or 'quire-demo'}: {number}, with {engine.threads} threads "
        f"each, routed by {deploy.routing}. Ray is at {place}, and its logs tell more: "
        f"{_logs()}{_events(settings)}\n"
        f"Quire running on {scheme}://{host}:{server.port} (Press CTRL+C to quit)"
    )


def _events(settings: DeploySettings) -> str:
    """Where events are published, from the first replica to the last."""
    events, most = settings.engine.kv_events, settings.deploy.most
    if events is None:
        return ""
    first, last = (replace(events, data_parallel_rank=rank).addresses[0] for rank in (0, most - 1))
    places = first if most == 1 else f"from {first} to {last}"
    return f". KV events are at {places}; quire:kv_events_info in /metrics tells whose are where"


def _number(span: Span) -> str:
    return f"{span.first}" + (f" (from {span.fewest} to {span.most})" if span.changes else "")


def _logs() -> str:
    context = ray.get_runtime_context()
    return f"{context.get_temp_dir()}/{context.get_session_name()}/logs/serve"


def _why(name: str) -> str | None:
    """The error of the engine that could not be started."""
    told = serve.status().applications.get(name)
    return own_words([] if told is None else [each.message for each in told.deployments.values()])


def own_words(messages: Iterable[str]) -> str | None:
    """What an error of Quire's says within what Ray tells."""
    found = _OWN.findall("\n".join(messages))
    return found[-1] if found else None


@contextlib.contextmanager
def _signals() -> Iterator[Event]:
    """An event that each signal to end sets. Ray sets handlers of its own before."""
    asked = Event()
    kinds = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup wants it
        kinds.append(signal.SIGHUP)
    before = [signal.signal(kind, lambda number, frame: asked.set()) for kind in kinds]
    try:
        yield asked
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
