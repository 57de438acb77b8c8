"""The parts in C++, which are missing if there was no compiler."""

from __future__ import annotations

from importlib import import_module

from quire.core.errors import ConfigError

KERNELS = "quire.kernels.cpu"  # which loads torch before its module, for torch's OpenMP
DRAFTERS = "quire.capabilities.speculation._native"
REMEDY = (
    "install a C++ compiler and Python's headers (Debian: apt install g++ python3-dev) and then "
    "Quire again (pip install --force-reinstall --no-deps --no-cache-dir)"
)


def why_missing(part: str) -> str | None:
    """Why a part, ``KERNELS`` or ``DRAFTERS``, is missing; None: it is there."""
    try:
        import_module(part)
    except ImportError as error:
        return str(error)
    return None


def need(part: str, what: str, instead: str) -> None:
    """ConfigError if a part that a setting needs is missing.

    what: how the message begins: the setting and what it needs. instead: what else can be done.
    """
    missing = why_missing(part)
    if missing is not None:
        raise ConfigError(
            f"{what} in C++, and this installation has none (was there a compiler when it was "
            f"installed?): {missing}. To have it {REMEDY}, or {instead}"
        )
