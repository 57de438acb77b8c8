"""The sockets of a server, taken before its model is loaded."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from quire.core.errors import ConfigError

_BACKLOG = 2048  # connections that the system keeps until they are accepted; as uvicorn's
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of ``host``; port 0 is one that is free.

    They do not listen yet, so that until there is a model clients are refused, not kept waiting.

    Raises:
        ConfigError: the host or the port cannot be had.
    """
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as closing:
        addresses = _addresses(host, port)
        for family, (ip, number, *scope) in addresses:
            if sockets and not port:  # the same one everywhere
                number = sockets[0].getsockname()[1]
            try:
                one = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:  # "::" by itself stands for IPv4 too
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, len(addresses) > 1)
                one.bind((ip, number, *scope))
                sockets.append(one)
            except OSError as error:
                if error.errno in _NOT_HERE and len(addresses) > 1:
                    continue  # localhost, say, where there is no IPv6
                raise _refusal(error, host, number) from error
        if not sockets:
            raise ConfigError(f"host {host!r} has no address of this machine")
        yield sockets


def listen(sockets: Sequence[socket.socket]) -> None:
    """Answer clients from now on. ConfigError if another server was first."""
    for one in sockets:
        try:
            one.listen(_BACKLOG)
        except OSError as error:
            host, port = one.getsockname()[:2]
            raise _refusal(error, host, port) from error


def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Family and address, each once; of all interfaces where ``host`` is empty."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, ValueError) as error:  # ValueError: it can be no name at all
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"host {host!r} cannot be resolved: {reason}") from error
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))


def _refusal(error: OSError, host: str, port: int) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} of {host or 'this machine'} is in use: choose another, or 0 for one that "
            "is free"
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} may not be used by this user: choose one from 1024 up")
    if error.errno in _NOT_HERE:
        return ConfigError(f"host {host!r} is not an address of this machine")
    return ConfigError(f"cannot listen on port {port} of {host!r}: {error.strerror}")
