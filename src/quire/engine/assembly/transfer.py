"""An engine's part in prefill and decode apart."""

from __future__ import annotations

from quire.blocks.store import RecordShelf
from quire.blocks.transfer import BlockFetcher, BlockServer, FetchedBlocks, Identity
from quire.core.errors import ConfigError
from quire.engine.assembly.store import BlocksOf, block_identity, record_form
from quire.engine.config import EngineConfig

Transfer = BlockServer | BlockFetcher


def listen_for_decoders(config: EngineConfig, rank: int = 0) -> BlockServer | None:
    """Before anything is loaded: a port that is taken is known in no time."""
    if config.role != "prefill":
        return None
    return BlockServer(config.transfer.kv_ip, config.transfer.kv_port + rank)


def describe_transfer(config: EngineConfig, server: BlockServer | None) -> str:
    """For the person who starts the engine."""
    if server is not None:
        return f" Others fetch the blocks of prompts at {config.transfer.kv_ip}:{server.port}."
    if config.role == "decode":
        return " Blocks of prompts are fetched from prefill engines, as requests say."
    return ""


def begin_transfer(
    config: EngineConfig, server: BlockServer | None, blocks: BlocksOf
) -> tuple[Transfer | None, RecordShelf | None]:
    """Who hands blocks over or fetches them, and where they lie meanwhile: this rank's parts."""
    if config.role == "both":
        return None, None
    identity = block_identity(config, blocks)
    form = record_form(identity, blocks.limits, blocks.cache)
    size = int(config.transfer.kv_buffer_size) // config.tensor_parallel_size
    known = Identity(identity)
    if size < form.num_bytes:
        raise ConfigError(
            f"kv_transfer_config: kv_buffer_size, {size:,} bytes, is less than a block of "
            f"{form.num_bytes:,} bytes"
        )
    if server is not None:
        shelf = RecordShelf(form, size)
        server.start(shelf, known)
        return server, shelf
    fetched = FetchedBlocks(form, size)
    return BlockFetcher(fetched, form, known, config.transfer.timeout, blocks.rank), fetched
