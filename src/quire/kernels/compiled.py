"""What is written in C++, and is not here where there was no compiler."""

from __future__ import annotations

from importlib import import_module

from quire.core.errors import ConfigError

KERNELS = "quire.kernels.cpu"  # which loads torch before its module, for torch's OpenMP
DRAFTERS = "quire.capabilities.speculation._native"


def why_missing(part: str) -> str | None:
    """Why a part is not here, ``KERNELS`` or ``DRAFTERS``; None: it is."""
    try:
        import_module(part)
    except ImportError as error:
        return str(error)
    return None


def need(part: str, what: str, instead: str) -> None:
    """ConfigError if a part is missing without which a setting cannot be had.

    what: the setting and what it needs, as the message begins; instead: what else can be done.
    """
    missing = why_missing(part)
    if missing is not None:
        raise ConfigError(
            f"{what} in C++, and this installation has none (was there a compiler when it was "
            f"installed?): {missing}. Install a compiler and then Quire again, or {instead}"
        )
