"""The engine behind OpenAI's HTTP API, and behind others."""

from quire.server.app import create_app
from quire.server.guards.listening import bound
from quire.server.service import ModelFacts
from quire.server.serving import Server, run_server

__all__ = ["ModelFacts", "Server", "bound", "create_app", "run_server"]
