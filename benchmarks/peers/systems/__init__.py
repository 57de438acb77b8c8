"""Who is compared: how each is set up, and the command that serves a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.peers.systems.hugging_face import Transformers
from benchmarks.peers.systems.llama_cpp import LlamaCpp
from benchmarks.peers.systems.openvino import OpenVino
from benchmarks.peers.systems.system import Setup, System
from benchmarks.peers.systems.vllm import Vllm

PEERS: Mapping[str, Callable[[Setup], System]] = {
    "vllm": Vllm,
    "openvino": OpenVino,
    "llamacpp": LlamaCpp,
    "transformers": Transformers,
}
