"""The prefill replicas as a decode replica calls them, over Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from quire_cluster.routing import Hint, prefix_of
from quire_cluster.rules import TAKEN_WITHIN, Pairing

logger = logging.getLogger(__name__)


class Prefillers:
    """See ``Prefiller``. Their failures cost time, and nothing else.

    seconds: how long one may be silent.
    """

    def __init__(self, handle: DeploymentHandle[Any], pairing: Pairing, seconds: float) -> None:
        self._prefill = handle.options(stream=True, method_name="prefill")
        self._pairing = pairing
        self._seconds = seconds

    def pays(self, new_tokens: int) -> bool:
        return self._pairing.pays(new_tokens, time.monotonic())

    async def prefill(self, prompt: Mapping[str, Any]) -> tuple[str, int] | None:
        cache = f"{prompt.get('adapter')}\0{prompt.get('cache_salt')}"
        hint = Hint(prefix_of({"prompt": list(prompt["prompt_token_ids"])}, cache))
        signs = self._prefill.remote(prompt, hint)
        try:
            await asyncio.wait_for(anext(signs), min(TAKEN_WITHIN, self._seconds))
            while (peer := await asyncio.wait_for(anext(signs), self._seconds)) is None:
                pass
            self._pairing.answered()
            return peer[0], peer[1]
        except asyncio.TimeoutError:
            self._pairing.unanswered(time.monotonic())
            logger.warning("no prefill replica answers")
        except (RayError, RayServeException, StopAsyncIteration) as error:
            logger.warning("a prefill replica has failed: %s", type(error).__name__)
        finally:
            signs.cancel()
        return None
