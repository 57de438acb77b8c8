"""All the doors."""

from __future__ import annotations

from fastapi import FastAPI

from quire.server.doors.anthropic import add_anthropic
from quire.server.doors.llama_cpp import add_llama_cpp
from quire.server.doors.ollama import add_ollama
from quire.server.doors.responses import add_responses
from quire.server.doors.tokens import add_tokens
from quire.server.service import Service


def add_doors(app: FastAPI, service: Service) -> None:
    for add in (add_tokens, add_responses, add_anthropic, add_ollama, add_llama_cpp):
        add(app, service)
