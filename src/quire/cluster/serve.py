"""The application that Ray Serve runs: a gateway, and behind it replicas."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import yaml
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from quire.cluster.scaling import demand_of
from quire.config import DeployConfig, EngineConfig, ServerConfig, Settings
from quire.errors import ConfigError
from quire.threads import usable_cores, wait_briefly

ENGINES = "Engine"

_ANY = 100_000  # requests at once: how many there may be is the engines' to say
_REPORTS = 1.0  # seconds between two of a replica's
_LOOK_BACK = 15.0  # seconds over which what it says for scaling is averaged
_CLOSING = 15.0  # seconds that an end takes beside the requests'
_SLOWEST = 5.0  # seconds until who is told of an error has it
_TICK = 0.1  # seconds between two looks whether a replica that leaves has answered all
_TRIES = 2  # to load the model
_HEALTH = 5.0  # seconds between two of its checks


@serve.ingress()
class Gateway:
    """Takes the requests, and has the replicas answer them."""

    def __init__(
        self, replicas: DeploymentHandle[Any], config: ServerConfig, adapters: frozenset[str]
    ) -> None:
        from quire.cluster.fleet import Fleet
        from quire.cluster.gateway import make_gateway

        _log(config)
        self._fleet = Fleet(replicas)
        self._gateway = make_gateway(self._fleet, config, adapters)

    def __serve_build_asgi_app__(self) -> Any:
        return self._gateway

    async def end(self, seconds: float) -> None:
        """Refuse what is new; what has not ended after so long ends with an error."""
        await self._gateway.drain.ended(seconds)
        await self._fleet.stop()
        await self._gateway.drain.ended(_SLOWEST)


class Engine:
    """A replica, put together where it runs."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, engine: EngineConfig, server: ServerConfig, engines: int
    ) -> None:
        wait_briefly()  # before torch is loaded
        from quire.cluster.replica import load_replica

        _log(server)
        name = serve.get_replica_context().replica_tag
        self._replica = replica = await load_replica(name, engine, server, engines)
        self.answer, self.whole_answer, self.stop = (
            replica.answer, replica.whole_answer, replica.stop,
        )  # fmt: skip

    async def check_health(self) -> None:
        self._replica.check_health()

    async def record_routing_stats(self) -> dict[str, float]:
        return (await self._replica.report())._asdict()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return demand_of(await self._replica.report())

    async def __del__(self) -> None:  # as Ray Serve calls it
        await self.stop()


def _log(config: ServerConfig) -> None:
    """What Quire tells, where Ray Serve writes down what it tells of this actor."""
    from quire.server import set_level

    set_level(config.uvicorn_log_level)
    logger = logging.getLogger("quire")
    logger.setLevel(logging.INFO)
    logger.handlers = logging.getLogger("ray.serve").handlers


def build_app(args: Mapping[str, Any]) -> Application:
    """For ``serve run`` and Ray's config files: the flags of ``quire deploy`` by their names."""
    given = {name.replace("-", "_"): value for name, value in args.items()}
    for name in ("host", "port", "ssl_keyfile", "ssl_certfile", "address", "app_name"):
        if name in given:
            raise ConfigError(f"{name} is Ray Serve's to say: see http_options in its config")
    types = {
        field.name: str(field.type)
        for kind in (EngineConfig, ServerConfig, DeployConfig)
        for field in fields(kind)
    }
    return application(Settings.of({name: _read(given[name], types.get(name)) for name in given}))


def _read(value: object, kind: str | None) -> object:
    """A setting that ``serve run`` has as a text, and that is none."""
    if isinstance(value, str) and kind is not None and not {"str", "Mapping"} & _words(kind):
        return yaml.safe_load(value)
    return value


def _words(kind: str) -> set[str]:
    return set(re.findall(r"\w+", kind))


def application(settings: Settings) -> Application:
    """The gateway, bound to its replicas."""
    engine, server, deploy = shared_out(settings)
    names = frozenset(module.name for module in engine.adapters)
    end = server.shutdown_timeout + _CLOSING
    engines = serve.deployment(
        Engine,
        name=ENGINES,
        max_ongoing_requests=_ANY,
        request_router_config=RequestRouterConfig(
            request_router_class="quire.cluster.router.QuireRouter",
            request_router_kwargs={"routing": deploy.routing},
            request_routing_stats_period_s=_REPORTS,
        ),
        graceful_shutdown_timeout_s=end,
        graceful_shutdown_wait_loop_s=_TICK,
        health_check_period_s=_HEALTH,
        ray_actor_options={"num_cpus": engine.threads},
        max_constructor_retry_count=_TRIES,
        **_number(deploy),
    ).bind(engine, server, deploy.most)
    gateway = serve.deployment(
        Gateway,
        name="Gateway",
        max_ongoing_requests=_ANY,
        graceful_shutdown_timeout_s=end,
        graceful_shutdown_wait_loop_s=_TICK,
        ray_actor_options={"num_cpus": 0},
    )
    return gateway.bind(engines, server, names)


def shared_out(settings: Settings) -> Settings:
    """The same, on CPUs, with as many threads for each engine as there are cores for it."""
    engine, most = settings.engine, settings.deploy.most
    threads = engine.threads or max(1, usable_cores() // most)
    return settings._replace(engine=replace(engine, device="cpu", threads=threads))


def _number(deploy: DeployConfig) -> dict[str, Any]:
    """Of replicas, and how it changes."""
    if deploy.max_replicas is None:
        return {"num_replicas": deploy.first}
    targets = {"target_usage": deploy.target_kv_usage, "target_wait": deploy.target_wait}
    policy = AutoscalingPolicy(
        policy_function="quire.cluster.scaling:Scaling", policy_kwargs=targets
    )
    config = AutoscalingConfig(
        min_replicas=deploy.fewest,
        initial_replicas=deploy.first,
        max_replicas=deploy.most,
        upscale_delay_s=deploy.upscale_delay,
        downscale_delay_s=deploy.downscale_delay,
        look_back_period_s=_LOOK_BACK,
        policy=policy,
    )
    return {"autoscaling_config": config}
