"""All the doors."""

from __future__ import annotations

from fastapi import FastAPI

from quire.http.doors.anthropic import add_anthropic
from quire.http.doors.llama_cpp import add_llama_cpp
from quire.http.doors.ollama import add_ollama
from quire.http.doors.responses import add_responses
from quire.http.doors.tokens import add_tokens
from quire.http.service import Service


def add_doors(app: FastAPI, service: Service) -> None:
    for add in (add_tokens, add_responses, add_anthropic, add_ollama, add_llama_cpp):
        add(app, service)
