"""How the engine of a plan is started: its command, and a manifest for Kubernetes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire_lab.simulation.planning.deployment import Deployment

_CHECKPOINT = "CHECKPOINT"
"""In a command: where a checkpoint is needed that the plan does not have."""

_FOLDER, _FILE = "/settings", "config.yaml"
"""Of settings that have no flag, in a container."""

_RESOURCES = {"gpu": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_AMD = "mi"  # what names of AMD's machines begin with
_SHARED_MEMORY = "8Gi"  # by which ranks exchange what they have


class ServerStart(NamedTuple):
    """words: of the command. file: config.yaml, of settings that have no flag; "": there are none.
    notes: what is to be had before.
    """

    words: tuple[str, ...]
    file: str = ""
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return shlex.join(self.words)


def start_of(deployment: Deployment, model: str, is_stored: bool) -> ServerStart | None:
    """With all settings that the plan is for; None: it is for no engine by name.

    model: by its name on the hub, or its path. is_stored: it is rounded in its files already.
    """
    engine, form = deployment.engine, deployment.model.form
    if engine is None:
        return None
    own = None if form is None or is_stored else engine.forms.get(form.name)
    needed = None if own is None else own.checkpoint
    if engine.name == "llamacpp" and form is None:
        needed = "GGUF, 16 bits"
    words, settings = _WRITERS[engine.name](
        deployment, deployment.limits(), model if needed is None else _CHECKPOINT
    )
    if own is not None and own.flag is not None:
        words += ["--quantization", own.flag]
    notes = [] if needed is None else [f"{_CHECKPOINT}: {model} as {needed}"]
    if deployment.drafting is not None or deployment.config.enable_lora:
        notes.append("flags of drafts and of adapters are not among them")
    return ServerStart(tuple(words), yaml.safe_dump(settings) if settings else "", tuple(notes))


def manifest_of(deployment: Deployment, start: ServerStart | None, replicas: int) -> str:
    """A Deployment and a Service for Kubernetes, as YAML.

    ConfigError: the engine has no image, or its machines are those of several nodes.
    """
    engine, machine, machines = deployment.engine, deployment.machine, deployment.tensor_parallel
    if engine is None or start is None or engine.image is None:
        raise ConfigError("manifest: there is one for engines with an image: give --engine; for "
                          "quire, deploy/kubernetes/quire.yaml is one")  # fmt: skip
    if machine.kind != "gpu":
        raise ConfigError(f"manifest: the image of {engine.title} is for GPUs, not {machine.name}")
    if machines > machine.per_node:
        raise ConfigError(f"manifest: {machines} x {machine.name} are of several nodes")
    name = f"{engine.name}-server"
    labels = {"app.kubernetes.io/name": name}
    resource = _RESOURCES["amd" if machine.name.startswith(_AMD) else "gpu"]
    mounts = [{"name": "shared", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}}
    ]
    if start.file:
        mounts.append({"name": "settings", "mountPath": _FOLDER})
        volumes.append({"name": "settings", "configMap": {"name": name}})
    container: dict[str, Any] = {
        "name": engine.name,
        "image": engine.image,
        "command": list(start.words),
        "ports": [{"name": "http", "containerPort": engine.port}],
        "startupProbe": {**_probe(), "failureThreshold": 360},
        "readinessProbe": _probe(),
        "resources": {"limits": {resource: machines}, "requests": {resource: machines}},
        "volumeMounts": mounts,
    }
    if start.file:
        container["workingDir"] = _FOLDER
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container],
                                                         "volumes": volumes}}  # fmt: skip
    parts: list[dict[str, Any]] = [
        _object("apps/v1", "Deployment", name, labels, spec={
            "replicas": replicas, "selector": {"matchLabels": labels}, "template": template}),
        _object("v1", "Service", name, labels, spec={
            "selector": labels,
            "ports": [{"name": "http", "port": engine.port, "targetPort": "http"}]}),
    ]  # fmt: skip
    if start.file:
        parts.insert(0, _object("v1", "ConfigMap", name, labels, data={_FILE: start.file}))
    notes = "".join(f"# {note}\n" for note in start.notes)
    return notes + yaml.safe_dump_all(parts, sort_keys=False)


def _probe() -> dict[str, Any]:
    return {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}


def _object(
    version: str, kind: str, name: str, labels: Mapping[str, str], **rest: Any
) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


# -- each engine's own flags ---------------------------------------------------------------------

_Written = tuple[list[str], dict[str, Any]]
"""The words of a command, and the settings that have no flag."""


def _quire(deployment: Deployment, limits: EngineLimits, model: str) -> _Written:
    words = ["quire", "serve", model]
    words += _sizes(
        limits, "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size"
    )
    if deployment.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(deployment.tensor_parallel)]
    return words + _of_vllm(deployment), {}


def _vllm(deployment: Deployment, limits: EngineLimits, model: str) -> _Written:
    groups = deployment.division.attention_groups
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(deployment.group)]
    if groups > 1:
        words += ["--data-parallel-size", str(groups)]
    if deployment.division.expert_parallel:
        words.append("--enable-expert-parallel")
    words += _sizes(limits, "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens",
                    "--block-size", groups)  # fmt: skip
    return words + _of_vllm(deployment), {}


def _of_vllm(deployment: Deployment) -> list[str]:
    """Flags that Quire has of vLLM."""
    words = _flag("--kv-cache-dtype", _kv_flag(deployment))
    engine = deployment.engine
    if engine is not None and not deployment.machine.is_cpu:
        words += ["--gpu-memory-utilization", f"{engine.memory.share:g}"]
    if deployment.config.enable_prefix_caching is False:
        words.append("--no-enable-prefix-caching")
    return words + (["--enforce-eager"] if deployment.config.enforce_eager else [])


def _sglang(deployment: Deployment, limits: EngineLimits, model: str) -> _Written:
    engine, division, config = deployment.engine, deployment.division, deployment.config
    assert engine is not None
    words = ["python3", "-m", "sglang.launch_server", "--model-path", model, "--host", "0.0.0.0",
             "--tp-size", str(deployment.tensor_parallel)]  # fmt: skip
    if division.attention_groups > 1:
        words += ["--dp-size", str(division.attention_groups), "--enable-dp-attention"]
    if division.expert_parallel:
        words += ["--ep-size", str(deployment.tensor_parallel)]
    words += _sizes(limits, "--context-length", "--max-running-requests",
                    "--chunked-prefill-size", "--page-size")  # fmt: skip
    memory = deployment.machine.memory
    free = engine.reserved(
        deployment.machine, config.max_num_batched_tokens, deployment.tensor_parallel
    )
    words += ["--mem-fraction-static", f"{engine.memory.share * (memory - free) / memory:.3f}"]
    words += _flag("--kv-cache-dtype", _kv_flag(deployment))
    words += [] if limits.enable_prefix_caching else ["--disable-radix-cache"]
    return words + (["--disable-cuda-graph"] if config.enforce_eager else []), {}


def _trtllm(deployment: Deployment, limits: EngineLimits, model: str) -> _Written:
    engine, division = deployment.engine, deployment.division
    assert engine is not None
    groups, machines = division.attention_groups, str(deployment.tensor_parallel)
    words = ["trtllm-serve", model, "--host", "0.0.0.0", "--tp_size", machines]
    words += ["--ep_size", machines] if division.expert_parallel else []
    words += _sizes(limits, "--max_seq_len", "--max_batch_size", "--max_num_tokens", "", groups)
    words += ["--kv_cache_free_gpu_memory_fraction", f"{engine.memory.share_of_free:g}",
              "--enable_chunked_prefill", "--config", _FILE]  # fmt: skip
    cache: dict[str, Any] = {
        "enable_block_reuse": limits.enable_prefix_caching,
        "tokens_per_block": limits.block_size,
    }
    if (kind := _kv_flag(deployment)) is not None:
        cache["dtype"] = kind
    settings: dict[str, Any] = {"kv_cache_config": cache}
    if groups > 1:
        settings["enable_attention_dp"] = True
    return words, settings


def _llamacpp(deployment: Deployment, limits: EngineLimits, model: str) -> _Written:
    tokens = limits.num_blocks * limits.block_size
    words = ["llama-server", "--model", model, "--host", "0.0.0.0", "--parallel",
             str(limits.max_num_seqs), "--kv-unified", "--ctx-size", str(tokens),
             "--batch-size", str(limits.max_num_batched_tokens),
             "--ubatch-size", str(limits.max_num_batched_tokens)]  # fmt: skip
    kind = _kv_flag(deployment)
    words += [] if kind is None else ["--cache-type-k", kind, "--cache-type-v", kind]
    if not deployment.machine.is_cpu:
        words += ["--n-gpu-layers", "all", "--flash-attn", "on"]
    if deployment.tensor_parallel > 1:
        words += ["--split-mode", "layer" if deployment.division.in_stages else "tensor"]
    return words, {}


_WRITERS: Mapping[str, Callable[[Deployment, EngineLimits, str], _Written]] = {
    "quire": _quire,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "llamacpp": _llamacpp,
}


def _sizes(
    limits: EngineLimits, longest: str, seqs: str, tokens: str, block: str, groups: int = 1
) -> list[str]:
    """The limits by the flags' names; "": there is none. groups: each of which has its share."""
    values = (
        (longest, limits.max_model_len),
        (seqs, -(-limits.max_num_seqs // groups)),
        (tokens, -(-limits.max_num_batched_tokens // groups)),
        (block, limits.block_size),
    )
    return [
        word for name, value in values if name and value is not None for word in (name, str(value))
    ]


def _flag(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _kv_flag(deployment: Deployment) -> str | None:
    engine, kind = deployment.engine, deployment.model.kv_dtype
    if engine is None or kind is None:
        return None
    return engine.kv[kind].flag or kind
