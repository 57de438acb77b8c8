"""The clients, and what each is asked to do: a script, or a command of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients.environments import Given, Install, Npm, Pip

_AGENTS = Pip(
    "python",
    (
        "openai", "openai-agents", "anthropic", "ollama", "langchain-openai", "langchain-ollama",
        "langchain-anthropic", "pydantic-ai-slim[openai,anthropic]", "instructor",
        "smolagents[openai]",
    ),
)  # fmt: skip
_LITELLM = Pip("litellm", ("dspy", "litellm[proxy]"))
_GUIDELLM = Pip("guidellm", ("guidellm",), torch=True)
_LM_EVAL = Pip("lm-eval", ("lm-eval[api]",), torch=True)
_NODE = Npm(
    "node",
    ("openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod@3"),
)
_VLLM = Given("QUIRE_CLIENTS_VLLM")


@dataclass(frozen=True)
class Client:
    """package: whose version is told. script: below scripts/."""

    package: str
    script: str
    install: Install

    @property
    def name(self) -> str:
        return self.script.rpartition(".")[0].replace("_", " ")


CLIENTS: Sequence[Client] = (
    Client("openai", "openai_python.py", _AGENTS),
    Client("openai", "openai_responses.py", _AGENTS),
    Client("openai-agents", "openai_agents.py", _AGENTS),
    Client("anthropic", "anthropic_python.py", _AGENTS),
    Client("ollama", "ollama_python.py", _AGENTS),
    Client("langchain-openai", "langchain_python.py", _AGENTS),
    Client("pydantic-ai-slim", "pydantic_ai_python.py", _AGENTS),
    Client("instructor", "instructor_python.py", _AGENTS),
    Client("smolagents", "smolagents_python.py", _AGENTS),
    Client("dspy", "dspy_python.py", _LITELLM),
    Client("litellm", "litellm_library.py", _LITELLM),
    Client("litellm", "litellm_proxy.py", _LITELLM),
    Client("openai", "openai_node.mjs", _NODE),
    Client("ai", "ai_sdk.mjs", _NODE),
    Client("guidellm", "guidellm_benchmark.py", _GUIDELLM),
    Client("lm-eval", "lm_eval_task.py", _LM_EVAL),
    Client("vllm", "vllm_bench.py", _VLLM),
)
