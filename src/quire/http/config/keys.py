"""The API keys of a server: from its settings, a file and the environment."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quire.core.errors import ConfigError

VARIABLE = "QUIRE_API_KEY"
_OTHERS = {"VLLM_API_KEY": False, "LLAMA_API_KEY": True}  # the variables of vLLM and llama.cpp
_FILE_OF_OTHERS = "LLAMA_ARG_API_KEY_FILE"
_GUARDS = {  # variables that guard other servers, and the setting that does it here
    "LLAMA_ARG_SSL_KEY_FILE": "ssl_keyfile",
    "LLAMA_ARG_SSL_CERT_FILE": "ssl_certfile",
    "LLAMA_ARG_CORS_ORIGINS": "allowed_origins",
    "OLLAMA_ORIGINS": "allowed_origins",
}
_ALL_OPEN = ("", "*")
_MOST_CHARACTERS = 1 << 20  # of a file

logger = logging.getLogger(__name__)


def gather_keys(given: Sequence[str], file: str | None) -> tuple[str, ...]:
    """The keys given, those of the file and those of the environment, each once.

    Other servers' variables count too. ConfigError, which shows no key, for one that no client
    could send.
    """
    if isinstance(given, str):  # one key, not one per letter
        given = [given]
    sources = [(f"api_key, key {number} of {len(given)},", key) for number, key in _count(given)]
    if file is not None:
        sources += _keys_of_file(Path(file))
    if os.environ.get(_FILE_OF_OTHERS):
        sources += _keys_of_file(Path(os.environ[_FILE_OF_OTHERS]))
    for name, many in {VARIABLE: True, **_OTHERS}.items():
        if name in os.environ:  # an empty one must not leave the server open
            keys = os.environ[name].split(",") if many else [os.environ[name]]
            sources += [
                (f"{name}, key {number} of {len(keys)},", key) for number, key in _count(keys)
            ]
    for source, key in sources:
        _check(source, key)
    return tuple(dict.fromkeys(key for _, key in sources))


def check_guards(settings: Mapping[str, object]) -> None:
    """ConfigError if a variable guards another server and its setting is missing here.

    settings: the values of those settings, by name.
    """
    for variable, name in _GUARDS.items():
        if os.environ.get(variable, "") not in _ALL_OPEN and not settings[name]:
            raise ConfigError(
                f"{variable} is set, which guards nothing here: give {name} in its place, or unset "
                "the variable"
            )


def _keys_of_file(path: Path) -> list[tuple[str, str]]:
    """(where it is, the key), one per line, without blank lines and comments."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"api_key_file cannot be read: {path}: {reason}") from None
    if len(text) > _MOST_CHARACTERS:  # a device may be endless
        raise ConfigError(f"api_key_file {path} has more than {_MOST_CHARACTERS:,} characters")
    lines = text.splitlines()
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        logger.warning("api_key_file %s can be read by every user of this machine", path)
    keys = [
        (f"api_key_file {path}, line {number},", line.strip())
        for number, line in _count(lines)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key: write one a line")
    return keys


def _count(values: Sequence[str]) -> Iterator[tuple[int, str]]:
    return enumerate(values, 1)


def _check(source: str, key: object) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{source} must be a text, got {type(key).__name__}")
    if not key:
        raise ConfigError(f"{source} is empty: leave it out, or give a key")
    if not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(f"{source} must be of printable ASCII characters without spaces")
