"""``quota``: of the requests that one client may have under way."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.recipe import Recipe

_FIELDS = "src/quire/engine/capabilities.py"
_QUOTA = '''"""How many requests each client may have under way."""

from __future__ import annotations

from collections import Counter

from quire.core.errors import RequestError
from quire.core.protocol import Request
from quire.core.scheduling import Capability


class Quota(Capability):
    """Refuses more than ``most`` requests of a client at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[str] = Counter()

    def request_begins(self, request: Request) -> None:
        """Count it, or refuse it."""
        if self._under_way[request.client] >= self._most:
            raise RequestError(f"a client may have {self._most} requests under way", "user")
        self._under_way[request.client] += 1

    def request_ends(self, request: Request) -> None:
        """Make room for another."""
        self._under_way[request.client] -= 1
'''

RECIPE = Recipe(
    "A capability",
    [
        (
            "src/quire/engine/config/engine.py",
            "    scheduling_policy: str = ",
            '    most_of_a_client: int = setting(0, "most requests of a client at once; 0: any")\n'
            "    scheduling_policy: str = ",
        ),
        (
            _FIELDS,
            "from quire.capabilities.sessions import SessionManager\n",
            "from quire.capabilities.quota import Quota\n"
            "from quire.capabilities.sessions import SessionManager\n",
        ),
        (
            _FIELDS,
            "    speculation: Speculation | None = None\n",
            "    speculation: Speculation | None = None\n    quota: Quota | None = None\n",
        ),
        (
            "src/quire/engine/assembly/engine.py",
            "from quire.capabilities.speculation import speculation_of\n",
            "from quire.capabilities.quota import Quota\n"
            "from quire.capabilities.speculation import speculation_of\n",
        ),
        (
            "src/quire/engine/assembly/engine.py",
            "        capabilities=Capabilities(\n",
            "        capabilities=Capabilities(\n"
            "            quota=Quota(most) if (most := config.most_of_a_client) else None,\n",
        ),
    ],
    {"src/quire/capabilities/quota/__init__.py": _QUOTA},
)


def check() -> None:
    """It refuses by name, counts ends, and is not there unless it is asked for."""
    from quire import LLM, SamplingParams
    from quire.core.errors import RequestError

    def engine(**options: Any) -> Any:
        return LLM(kv_cache_memory_bytes="4MiB", **options).engine

    def begin(engine: Any, name: str, client: str) -> None:
        prompt = {"prompt_token_ids": [1, 2, 3], "client": client}
        engine.add_request(name, prompt, SamplingParams(max_tokens=2, ignore_eos=True))

    guarded = engine(most_of_a_client=1)
    begin(guarded, "a", "anna")
    begin(guarded, "b", "bert")
    with pytest.raises(RequestError, match="a client may have 1 requests under way"):
        begin(guarded, "c", "anna")
    while guarded.has_work:
        guarded.step()
    begin(guarded, "d", "anna")
    assert engine().capabilities.quota is None
