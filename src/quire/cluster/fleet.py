"""The replicas as the gateway asks them: over Ray Serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from quire.cluster.calls import Call, Whole
from quire.cluster.routing import Hint
from quire.errors import EngineError, QueueTimeoutError
from quire.server.errors import EngineUnavailableError

_ACCEPTED = 30.0  # seconds until a replica has taken a request: none may be there for a while
_AGAIN = 2.0  # seconds after which one may be
_TOLD = 10.0  # seconds for all replicas to tell something


class Fleet:
    """All of the replicas of one deployment."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._answer = handle.options(stream=True, method_name="answer")

    async def ask(self, call: Call, hint: Hint) -> AsyncGenerator[list[Message], None]:
        """See ``Replicas.ask``."""
        answer = self._answer.remote(call, hint)
        try:
            await asyncio.wait_for(anext(answer), _ACCEPTED)
            async for messages in answer:
                yield messages
        except asyncio.TimeoutError:
            text = f"no replica has taken the request within {_ACCEPTED:g} s"
            raise QueueTimeoutError(text, _AGAIN) from None
        except (RayError, RayServeException) as error:
            raise _gone(error) from error
        finally:
            answer.cancel()

    async def ask_all(self, call: Call) -> list[Whole]:
        """What each says; those that do not answer are left out."""
        asked = self._handle.broadcast("whole_answer", call)
        try:
            told = await asked.results_async(timeout_s=_TOLD, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as error:
            raise _gone(error) from error
        answers = sorted(one for one in told if isinstance(one, Whole))
        if not answers:
            raise EngineUnavailableError("no replica answers")
        return answers

    async def stop(self) -> None:
        """End all engines; what they run ends with an error."""
        stopped = self._handle.broadcast("stop")
        with contextlib.suppress(TimeoutError, RayError, RayServeException):
            await stopped.results_async(timeout_s=_TOLD, return_exceptions=True)


def _gone(error: Exception) -> EngineError:
    return EngineUnavailableError(
        f"the replica that had this request is gone ({type(error).__name__}): ask again"
    )
