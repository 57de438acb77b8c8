"""Prefill and decode apart, as vLLM's proxies ask for it: ``kv_transfer_params``.

A proxy has a prefill engine compute a prompt, with ``do_remote_decode``, and one token. What that
answers it gives to a decode engine along with the same request, which fetches the prompt's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.blocks.transfer import BlockFetcher, BlockServer, SharedKey
from quire.core.errors import RequestError, cut
from quire.http.config.server import is_loopback
from quire.http.service import Service
from quire.http.unknown_fields import why_not

_FIELD = "kv_transfer_params"
_KNOWN = {  # what an answer tells, and so what a proxy hands on
    "do_remote_prefill": (bool, "true or false"),
    "do_remote_decode": (bool, "true or false"),
    "remote_engine_id": (str, "a text"),
    "remote_block_ids": (list, "a list"),
    "remote_host": (str, "a name or an address"),
    "remote_port": (int, "a number"),
    "tp_size": (int, "a number"),
}


def remote_prefill(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a prompt says of where its blocks are; RequestError where they cannot be handed over."""
    _check(given)
    if not (_asks(given, "do_remote_decode") or _asks(given, "do_remote_prefill")):
        return {}
    transfer = service.engine.engine.capabilities.transfer
    if _asks(given, "do_remote_decode"):
        if not isinstance(transfer, BlockServer):
            raise RequestError('do_remote_decode needs a server of role "prefill"', _FIELD)
        return {}
    if not isinstance(transfer, BlockFetcher):
        raise RequestError('do_remote_prefill needs a server of role "decode"', _FIELD)
    host, port = given.get("remote_host"), given.get("remote_port")
    if not isinstance(host, str) or not 0 < len(host) < 256:
        raise RequestError("do_remote_prefill needs remote_host, a name or an address", _FIELD)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise RequestError("do_remote_prefill needs remote_port, from 1 to 65535", _FIELD)
    _check_named(transfer.key, given, host, port)
    return {"remote_prefill": (host, port)}


async def handed_over(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer tells a decode engine, once the blocks are where it can fetch them."""
    transfer = service.engine.engine.capabilities.transfer
    if not isinstance(transfer, BlockServer) or not _asks(given, "do_remote_decode"):
        return {}
    others = service.engine.engine.capabilities.others
    await service.in_engine(service.engine.engine.put_away)
    answer = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": transfer.key.name(transfer.host, transfer.port),
        "remote_block_ids": [],  # blocks go by their content
        "remote_host": transfer.host,
        "remote_port": transfer.port,
        "tp_size": 1 if others is None else others.size,
    }
    return {_FIELD: answer}


def _check_named(key: SharedKey, given: Mapping[str, Any], host: str, port: int) -> None:
    """RequestError unless blocks from there may be taken for what their names stand for.

    Others' prompts may begin alike, so that what a client's own engine gives would be theirs too.
    """
    if not key and (not is_loopback(host) or host.endswith(".localhost")):  # those may lead away
        text = (
            "remote_host must be this machine: blocks from another one are taken where both "
            "engines have a key (kv_transfer_config: key_file)"
        )
        raise RequestError(text, _FIELD)
    if key and not key.has_named(given.get("remote_engine_id") or "", host, port):
        text = "remote_engine_id must be what an engine with the same key has answered"
        raise RequestError(f"{text}, with its remote_host and remote_port", _FIELD)


def _check(given: Mapping[str, Any]) -> None:
    """RequestError for a field that is not understood."""
    for name, value in given.items():
        if name not in _KNOWN:
            path = f"{_FIELD}.{cut(name)}"
            raise RequestError(why_not(path), path)
        kind, words = _KNOWN[name]
        if value is not None and (
            not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)
        ):
            raise RequestError(f"{name} must be {words}", _FIELD)
    if _asks(given, "do_remote_decode") and _asks(given, "do_remote_prefill"):
        raise RequestError(
            "do_remote_decode and do_remote_prefill cannot be given together", _FIELD
        )


def _asks(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) is True
