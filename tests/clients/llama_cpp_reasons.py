"""Why tests of llama.cpp's server fail against ours: what is not here, or is here otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOT_RUN: Mapping[str, str] = {
    "test_compat_gcp": "Vertex's addresses are not here",
    "test_kv_keep_only_active": "it reads llama.cpp's log",
    "test_lora": "it fetches an adapter from a hub",
    "test_mcp_servers": "nothing is run here for a request",
    "test_proxy": "nothing is fetched here for a page",
    "test_router": "one server serves one model",
    "test_sleep": "a model stays as long as its server",
    "test_slot_save": "places have nothing of their own here",
    "test_speculative": "it fetches a draft model from a hub",
    "test_stream": "one server serves one model",
    "test_tools_builtin": "nothing is run here for a request",
    "test_vision_api": "texts come in and go out, nothing else",
}
"""Files that test nothing which is here."""

_REASONS: Mapping[str, Sequence[str]] = {}


def reason_of(name: str) -> str | None:
    """Why a test, ``file::test[case]``, fails; None: nobody knows."""
    found = (reason for reason, names in _REASONS.items() if name.startswith(tuple(names)))
    return next(found, None)
