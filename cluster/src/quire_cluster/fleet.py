"""The replicas as the gateway calls them, over Ray Serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from quire.core.errors import EngineError, QueueTimeoutError
from quire.http.errors import EngineUnavailableError
from quire_cluster.calls import ReplicaCall, Whole
from quire_cluster.routing import Hint

_ACCEPTED = 30.0  # seconds to find a replica for a request; there may be none for a while
_AGAIN = 2.0  # seconds between two tries
_TOLD = 10.0  # seconds for all replicas to answer


class Fleet:
    """All replicas: those of the deployment that answers, and the prefill replicas."""

    def __init__(self, answering: DeploymentHandle[Any], *others: DeploymentHandle[Any]) -> None:
        self._all = [answering, *others]
        self._answer = answering.options(stream=True, method_name="answer")

    async def ask(self, call: ReplicaCall, hint: Hint) -> AsyncGenerator[list[Message], None]:
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

    async def ask_all(self, call: ReplicaCall) -> list[Whole]:
        """The answers of all replicas; those that do not answer are left out."""
        told = [one for one in await self._tell("whole_answer", call) if isinstance(one, Whole)]
        if not told:
            raise EngineUnavailableError("no replica answers")
        return sorted(told)

    async def stop(self) -> None:
        """End all engines; requests that run end with an error."""
        await self._tell("stop")

    async def _tell(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all replicas to a call, or the errors in their place."""
        asked = (self._ask_of(handle, method, arguments) for handle in self._all)
        return [one for told in await asyncio.gather(*asked) for one in told]

    async def _ask_of(
        self, handle: DeploymentHandle[Any], method: str, arguments: tuple[Any, ...]
    ) -> list[Any]:
        """The answers of one deployment's replicas; None: it has none."""
        with contextlib.suppress(TimeoutError, RayError, RayServeException):
            said = handle.broadcast(method, *arguments)
            return list(await said.results_async(timeout_s=_TOLD, return_exceptions=True))
        return []


def _gone(error: Exception) -> EngineError:
    return EngineUnavailableError(
        f"the replica that had this request is gone ({type(error).__name__}): ask again"
    )
