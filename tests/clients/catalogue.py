"""The clients, and what each is asked to do: a script, or a command of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients.environments import Given, Install, Npm, Pip

# Packages that ask for each other's neighbours keep an old pip busy for ever: one a client.
_VENDORS = Pip("vendors", ("openai", "anthropic", "ollama"))
_AGENTS = Pip("agents", ("openai-agents",))
_LANGCHAIN = Pip("langchain", ("langchain-openai", "langchain-ollama", "langchain-anthropic"))
_PYDANTIC_AI = Pip("pydantic-ai", ("pydantic-ai-slim[openai,anthropic]",))
_INSTRUCTOR = Pip("instructor", ("instructor",))
_SMOLAGENTS = Pip("smolagents", ("smolagents[openai]",))
_DSPY = Pip("dspy", ("dspy",))
_LITELLM = Pip("litellm", ("litellm[proxy]",))
_GUIDELLM = Pip("guidellm", ("guidellm",), torch=True)
_LM_EVAL = Pip("lm-eval", ("lm-eval[api]", "transformers"), torch=True)
_NODE = Npm(
    "node",
    ("openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod@3"),
)
_VLLM = Given("QUIRE_CLIENTS_VLLM")


@dataclass(frozen=True)
class Client:
    """script: below scripts/."""

    script: str
    install: Install

    @property
    def name(self) -> str:
        return self.script.rpartition(".")[0].replace("_", " ")


CLIENTS: Sequence[Client] = (
    Client("openai_python.py", _VENDORS),
    Client("openai_responses.py", _VENDORS),
    Client("anthropic_python.py", _VENDORS),
    Client("ollama_python.py", _VENDORS),
    Client("openai_agents.py", _AGENTS),
    Client("langchain_python.py", _LANGCHAIN),
    Client("pydantic_ai_python.py", _PYDANTIC_AI),
    Client("instructor_python.py", _INSTRUCTOR),
    Client("smolagents_python.py", _SMOLAGENTS),
    Client("dspy_python.py", _DSPY),
    Client("litellm_library.py", _LITELLM),
    Client("litellm_proxy.py", _LITELLM),
    Client("openai_node.mjs", _NODE),
    Client("ai_sdk.mjs", _NODE),
    Client("guidellm_benchmark.py", _GUIDELLM),
    Client("lm_eval_task.py", _LM_EVAL),
    Client("vllm_bench.py", _VLLM),
)
