"""Adapters as vLLM's users of Python name them, with each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from quire.capabilities.adapters.config import problem_with_name
from quire.capabilities.adapters.served import Adapters
from quire.core.errors import ConfigError
from quire.core.protocol import Adapter

_T = TypeVar("_T")


class LoRARequest(NamedTuple):
    """An adapter, as vLLM's users name it.

    lora_name: what it is called; one adapter at a time is called so.
    lora_int_id: which version of it: another one than before has its directory read again.
    lora_path: the directory; another one than before is read in its place. Requests that run keep
        the weights that they began with. What is read is known by its content: equal files share a
        prefix cache whatever they are called, and others never do.
    load_inplace: read it again, whatever is there by now.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False


LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, or one of each."""


class EngineTurns(Protocol):
    """Lets one caller of an engine act after the other; see ``Driver``."""

    def turn(self, act: Callable[[], _T]) -> _T: ...

    def change(self, act: Callable[[], _T]) -> _T: ...


class NamedAdapters:
    """Reads adapters as requests name them, unless that very one is served already.

    adapters: None: the engine serves none.
    """

    def __init__(self, adapters: Adapters | None, turns: EngineTurns) -> None:
        self._adapters, self._turns = adapters, turns
        self._versions: dict[str, int] = {}  # by name, of those that requests have brought

    def names(self, asked: Sequence[LoRARequest | None]) -> list[str | None]:
        """The names by which the adapters can be asked for from now on."""
        for one in dict.fromkeys(asked):
            if one is not None:
                self.load(one)
        return [None if one is None else one.lora_name for one in asked]

    def load(self, asked: LoRARequest) -> Adapter:
        """The adapter that is meant. A QuireError: there is none, or adapters are not served."""
        adapters = self._adapters
        if adapters is None:
            raise ConfigError("lora_request needs enable_lora")
        if problem := problem_with_name(asked.lora_name):
            raise ConfigError(f"lora_request: {problem}")
        path = Path(asked.lora_path).expanduser()
        self._turns.turn(lambda: self._read(adapters, asked, path))
        return adapters.find(asked.lora_name)

    def _read(self, adapters: Adapters, asked: LoRARequest, path: Path) -> None:
        name, version = asked.lora_name, asked.lora_int_id
        known = name in adapters and self._versions.get(name, version) == version
        if not known or asked.load_inplace or not adapters.is_from(name, path):
            source = adapters.check(path)
            self._turns.change(
                lambda: adapters.add(name, source, asked.base_model_name, in_place=True)
            )
        self._versions[name] = version
