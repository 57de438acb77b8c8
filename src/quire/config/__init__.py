"""Every setting, in vLLM's names: frozen values, of which the CLI's flags are made."""

from quire.config.adapters import LoraModule, problem_with_name
from quire.config.deploy import DeployConfig, Settings, Span
from quire.config.engine import NO_ADAPTERS_ON_GPU, NO_DRAFT_MODEL_ON_GPU, EngineConfig
from quire.config.kv_events import KVEventsConfig, is_listened_on
from quire.config.names import check_names
from quire.config.open_files import make_room
from quire.config.parallel import NO_RANKS_ON_GPU
from quire.config.server import ServerConfig
from quire.config.settings import parse_bytes
from quire.config.speculative import MOST_DRAFTS, SpeculativeConfig
from quire.config.store import no_store_on_gpu
from quire.config.transfer import NO_ROLE_ON_GPU, KVTransferConfig

__all__ = [
    "MOST_DRAFTS",
    "NO_ADAPTERS_ON_GPU",
    "NO_DRAFT_MODEL_ON_GPU",
    "NO_RANKS_ON_GPU",
    "NO_ROLE_ON_GPU",
    "DeployConfig",
    "EngineConfig",
    "KVEventsConfig",
    "KVTransferConfig",
    "LoraModule",
    "ServerConfig",
    "Settings",
    "Span",
    "SpeculativeConfig",
    "check_names",
    "is_listened_on",
    "make_room",
    "no_store_on_gpu",
    "parse_bytes",
    "problem_with_name",
]
