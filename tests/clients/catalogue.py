"""The clients, and what each is asked to do: a script, or a command of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

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
# Apart, as each brings a program of hundreds of megabytes, or may not be had everywhere.
_ANTHROPIC_NODE = Npm("anthropic-node", ("@anthropic-ai/sdk",))
_CLAUDE_CODE = Npm("claude-code", ("@anthropic-ai/claude-code",))
_CODEX = Npm("codex", ("@openai/codex",))
_VLLM = Given("QUIRE_CLIENTS_VLLM")


@dataclass(frozen=True)
class Client:
    """script: below scripts/; those below agents/ want a model that obeys them."""

    script: str
    install: Install

    @property
    def name(self) -> str:
        return str(PurePath(self.script).with_suffix("")).replace("_", " ")

    @property
    def is_agent(self) -> bool:
        return self.script.startswith("agents/")


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
    Client("agents/anthropic_python.py", _VENDORS),
    Client("agents/anthropic_node.mjs", _ANTHROPIC_NODE),
    Client("agents/openai_node.mjs", _NODE),
    Client("agents/openai_agents.py", _AGENTS),
    Client("agents/smolagents_python.py", _SMOLAGENTS),
    Client("agents/ai_sdk.mjs", _NODE),
    Client("agents/claude_code.mjs", _CLAUDE_CODE),
    Client("agents/codex.mjs", _CODEX),
)
