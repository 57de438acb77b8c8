"""An engine's part in prefill and decode apart."""

from __future__ import annotations

from collections.abc import Mapping

from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.store import RecordForm, RecordShelf
from quire.transfer import BlockFetcher, BlockServer, FetchedBlocks, Identity

Transfer = BlockServer | BlockFetcher


def listen_for_decoders(config: EngineConfig) -> BlockServer | None:
    """Before anything is loaded: a port that is taken is known in no time."""
    if config.role != "prefill":
        return None
    return BlockServer(config.transfer.kv_ip, config.transfer.kv_port)


def begin_transfer(
    config: EngineConfig,
    server: BlockServer | None,
    form: RecordForm,
    identity: Mapping[str, str],
) -> tuple[Transfer, RecordShelf]:
    """Who hands blocks over or fetches them, and where they lie meanwhile."""
    size, known = int(config.transfer.kv_buffer_size), Identity(identity)
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
    return BlockFetcher(fetched, form, known, config.transfer.timeout), fetched
