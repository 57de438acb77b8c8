"""The application that Ray Serve runs: a gateway, and replicas behind it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from quire.blocks.transfer import Prefiller
from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.http.config.server import ServerConfig
from quire.kernels.threads import usable_cores, wait_briefly
from quire_cluster.config import DeployConfig, DeploySettings, Span
from quire_cluster.publishing import with_place
from quire_cluster.rules import Pairing
from quire_cluster.rules.scaling import recorded

ENGINES, PREFILLERS = "Engine", "Prefill"

_ANY = 100_000  # requests at once; the engines set the limit
_REPORTS = 1.0  # seconds between two reports of a replica
_LOOK_BACK = 15.0  # seconds over which its figures for scaling are averaged
_CLOSING = 5.0  # seconds that shutdown takes on top of the requests'
_SLOWEST = 5.0  # seconds in which an error reaches its client
_TICK = 0.1  # seconds between two checks that a leaving replica has answered all
_TRIES = 2  # to load the model
_HEALTH = 5.0  # seconds between two health checks


@serve.ingress()
class GatewayDeployment:
    """Receives requests, and forwards them to the replicas of the first handle."""

    def __init__(
        self, replicas: list[DeploymentHandle[Any]], config: ServerConfig, adapters: frozenset[str]
    ) -> None:
        from quire_cluster.fleet import Fleet
        from quire_cluster.gateway import make_gateway

        _log(config)
        self._fleet = Fleet(*replicas)
        self._gateway = make_gateway(self._fleet, config, adapters)

    def __serve_build_asgi_app__(self) -> Any:
        return self._gateway

    async def end(self, seconds: float) -> None:
        """Refuse new requests; those that run longer than this end with an error."""
        await self._gateway.drain.ended(seconds)
        await self._fleet.stop()
        await self._gateway.drain.ended(_SLOWEST)


class EngineDeployment:
    """A replica, assembled where it runs."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        engine: EngineConfig,
        server: ServerConfig,
        deploy: DeployConfig,
        prefill: DeploymentHandle[Any] | None = None,
    ) -> None:
        """prefill: the replicas that compute prompts for this one."""
        wait_briefly()  # before torch is loaded
        from quire_cluster.replica import load_replica

        _log(server)
        context = serve.get_replica_context()
        name, rank = context.replica_tag, context.rank.rank
        if engine.role == "prefill":
            engine, rank = _with_address(engine), deploy.answering.most + rank
        engine = with_place(engine, rank, 2 * deploy.most)  # when others have replaced it
        prefillers = None if prefill is None else _prefillers(prefill, engine, deploy)
        self._replica = replica = await load_replica(name, engine, server, deploy.most, prefillers)
        self.answer, self.whole_answer, self.prefill, self.stop = (
            replica.answer, replica.whole_answer, replica.prefill, replica.stop,
        )  # fmt: skip

    async def check_health(self) -> None:
        self._replica.check_health()

    async def record_routing_stats(self) -> dict[str, float]:
        return (await self._replica.report())._asdict()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return recorded(await self._replica.report())

    async def __del__(self) -> None:  # the replica's name in Ray Serve
        await self.stop()


def _log(config: ServerConfig) -> None:
    """Send Quire's log to the log that Ray Serve keeps for this actor."""
    from quire.http.serving import set_level

    set_level(config.uvicorn_log_level)
    logger = logging.getLogger("quire")
    logger.setLevel(logging.INFO)
    logger.handlers = logging.getLogger("ray.serve").handlers


def build_app(args: Mapping[str, Any]) -> Application:
    """The application for ``serve run`` and Ray's config files, by ``quire deploy``'s flags."""
    given = {name.replace("-", "_"): value for name, value in args.items()}
    for name in ("host", "port", "ssl_keyfile", "ssl_certfile", "address", "app_name"):
        if name in given:
            raise ConfigError(f"{name} is Ray Serve's to say: see http_options in its config")
    types = {
        field.name: str(field.type)
        for kind in (EngineConfig, ServerConfig, DeployConfig)
        for field in fields(kind)
    }
    return application(
        DeploySettings.of({name: _read(given[name], types.get(name)) for name in given})
    )


def _read(value: object, kind: str | None) -> object:
    """A setting that ``serve run`` gives as a text though it is not one."""
    if isinstance(value, str) and kind is not None and not {"str", "Mapping"} & _words(kind):
        return yaml.safe_load(value)
    return value


def _words(kind: str) -> set[str]:
    return set(re.findall(r"\w+", kind))


def application(settings: DeploySettings) -> Application:
    """The gateway, bound to its replicas."""
    settings = shared_out(settings)
    engine, server, deploy = settings
    prefill: list[Application] = []
    if deploy.prefilling is not None:
        prefills = _engines(PREFILLERS, settings, deploy.prefilling)
        prefill.append(prefills.bind(replace(engine, role="prefill"), server, deploy))
    engines = _engines(ENGINES, settings, deploy.answering).bind(engine, server, deploy, *prefill)
    gateway = serve.deployment(
        GatewayDeployment,
        name="Gateway",
        max_ongoing_requests=_ANY,
        graceful_shutdown_timeout_s=server.shutdown_timeout + _CLOSING,
        graceful_shutdown_wait_loop_s=_TICK,
        ray_actor_options={"num_cpus": 0},
    )
    names = frozenset(module.name for module in engine.adapters)
    return gateway.bind([engines, *prefill], server, names)


def _engines(name: str, settings: DeploySettings, span: Span) -> Deployment:
    """The replicas of one role."""
    server, deploy = settings.server, settings.deploy
    return serve.deployment(
        EngineDeployment,
        name=name,
        max_ongoing_requests=_ANY,
        request_router_config=RequestRouterConfig(
            request_router_class="quire_cluster.router.QuireRouter",
            request_router_kwargs={"routing": deploy.routing},
            request_routing_stats_period_s=_REPORTS,
        ),
        graceful_shutdown_timeout_s=server.shutdown_timeout + _CLOSING,
        graceful_shutdown_wait_loop_s=_TICK,
        health_check_period_s=_HEALTH,
        ray_actor_options={"num_cpus": settings.engine.threads},
        max_constructor_retry_count=_TRIES,
        **_number(span, deploy),
    )


def shared_out(settings: DeploySettings) -> DeploySettings:
    """The settings with device cpu, and each engine's share of the cores as its threads.

    Without the page, which would show one engine's blocks as if they were all.
    """
    engine, most = settings.engine, settings.deploy.most
    threads = engine.threads or max(1, usable_cores() // most)
    return settings._replace(
        engine=replace(engine, device="cpu", threads=threads),
        server=replace(settings.server, dashboard=False),
    )


def _number(span: Span, deploy: DeployConfig) -> dict[str, Any]:
    """How many replicas there are, and how that changes, in Ray's terms."""
    if not span.changes:
        return {"num_replicas": span.first}
    targets = {"target_usage": deploy.target_kv_usage, "target_wait": deploy.target_wait}
    policy = AutoscalingPolicy(
        policy_function="quire_cluster.rules.scaling:Scaling", policy_kwargs=targets
    )
    config = AutoscalingConfig(
        min_replicas=span.fewest,
        initial_replicas=span.first,
        max_replicas=span.most,
        upscale_delay_s=deploy.upscale_delay,
        downscale_delay_s=deploy.downscale_delay,
        look_back_period_s=_LOOK_BACK,
        policy=policy,
    )
    return {"autoscaling_config": config}


def _with_address(engine: EngineConfig) -> EngineConfig:
    """The settings with a port of its own for handing over blocks, on the replica's machine."""
    given = {"kv_ip": ray.util.get_node_ip_address(), **(engine.kv_transfer_config or {})}
    return replace(engine, kv_transfer_config={**given, "kv_port": 0})


def _prefillers(
    handle: DeploymentHandle[Any], engine: EngineConfig, deploy: DeployConfig
) -> Prefiller:
    from quire_cluster.prefillers import Prefillers

    return Prefillers(handle, Pairing(deploy.max_local_prefill_length), engine.transfer.timeout)
