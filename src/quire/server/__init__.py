"""The engine behind OpenAI's HTTP API, and behind others."""

from quire.server.app import create_app
from quire.server.guards.last_resort import LastResort
from quire.server.guards.listening import bound
from quire.server.kept_ids import keeper_of
from quire.server.logs import set_format
from quire.server.service import ModelFacts
from quire.server.serving import Server, longest_end, run_server, set_level

__all__ = [
    "LastResort",
    "ModelFacts",
    "Server",
    "bound",
    "create_app",
    "keeper_of",
    "longest_end",
    "run_server",
    "set_format",
    "set_level",
]
