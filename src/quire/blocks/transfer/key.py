"""The key that engines share which hand blocks over to each other, and clients do not know.

Requests say where blocks are. With a key they can only say what an engine that has it has told:
it seals its own address. And nobody is given blocks, or believed, who does not prove to have it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from msgspec import Struct

from quire.core.errors import ConfigError
from quire.kernels.transport import PeerError

_FEWEST, _MOST = 16, 1024  # bytes of a key
_NONCE = 16  # bytes
_NAME = "kv_transfer_config: key_file"


class Proof(Struct, tag=True, frozen=True):
    """That who sends it has the key, for this connection only."""

    mac: bytes


class SharedKey:
    """May be no key, which is false: then everybody is believed who can be reached."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret

    def __bool__(self) -> bool:
        return bool(self._secret)

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None) -> SharedKey:
        """The key in a file, without spaces around it; None: no key. ConfigError: it holds none."""
        if path is None:
            return cls()
        try:
            with Path(path).open("rb") as file:  # a device may be endless
                secret = file.read(_MOST + 1).strip()
        except OSError as error:
            raise ConfigError(f"{_NAME} cannot be read: {path}: {error.strerror}") from None
        if not _FEWEST <= len(secret) <= _MOST:
            raise ConfigError(f"{_NAME} {path} must hold a key of {_FEWEST} to {_MOST:,} bytes")
        return cls(secret)

    def nonce(self) -> bytes:
        """New for each connection; empty where there is no key."""
        return secrets.token_bytes(_NONCE) if self else b""

    def proof(self, who: str, challenge: bytes, own: bytes) -> Proof:
        """Proves it to who has sent ``challenge``. who: "serves" or "fetches"."""
        return Proof(self._mac(who.encode(), challenge, own))

    def check(self, proof: Proof, who: str, challenge: bytes, theirs: bytes) -> None:
        """PeerError unless the other end has this key."""
        if not hmac.compare_digest(proof.mac, self._mac(who.encode(), challenge, theirs)):
            raise PeerError(f"it has another key ({_NAME})")

    def name(self, host: str, port: int) -> str:
        """What an engine at this address is called, sealed if there is a key."""
        address = f"{host}:{port}"
        return f"{address}/{self._mac(b'at', _bytes(address)).hex()}" if self else address

    def has_named(self, name: str, host: str, port: int) -> bool:
        """Whether an engine that has the key calls itself so, and is at this address."""
        return hmac.compare_digest(_bytes(name), _bytes(self.name(host, port)))

    def _mac(self, *parts: bytes) -> bytes:
        framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._secret, framed, "sha256")


def _bytes(text: str) -> bytes:
    """Of any text: a client's may be one that UTF-8 does not know."""
    return text.encode(errors="surrogatepass")
